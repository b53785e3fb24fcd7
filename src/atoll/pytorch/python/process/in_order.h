// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace atl::pytorch {

/// A thread that runs tasks when they are ready, those of one line in the order in which they were posted: sends from
/// an accelerator whose bytes are still being copied to the host, and copies inside a device. Lines do not wait for
/// each other. Thread-safe; the thread starts with the first task.
class InOrder {
 public:
  /// Identifies tasks that must run in order, such as messages of one group to one destination with one tag.
  using Line = std::tuple<const void*, int, std::uint64_t>;

  /// `thread`: its name. `prepare`, if not null, is called first by it.
  explicit InOrder(const char* thread, void (*prepare)() = nullptr) : name_(thread), prepare_(prepare) {}
  ~InOrder() { stop(); }

  /// Polls `ready` until it returns true, then runs `task`. Neither may throw. Throws std::system_error if the thread
  /// cannot be started; nothing is posted then.
  void post(const Line& line, std::function<bool()> ready, std::function<void()> task);

  /// Returns whether `line` is empty, so that a task posted there now would be polled at once.
  bool is_idle(const Line& line) const;

  /// Runs the posted tasks whether or not they are ready, then ends the thread. Tasks posted later run at once.
  void stop();

 private:
  struct Task {
    std::function<bool()> ready;
    std::function<void()> run;
  };
  void serve();

  const char* const name_;
  void (*const prepare_)();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Line, std::deque<Task>> lines_;  // none is empty; the front of each is under way
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atl::pytorch
