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

/// A thread that runs tasks when they are ready, those of one line in the order in which they were posted: sends from an
/// accelerator, whose bytes are still on their way to the host, and copies inside one. Lines do not wait for each other. Thread-safe; the thread
/// starts with the first task.
class InOrder {
 public:
  /// What must not overtake each other: messages of a group to a destination with a tag.
  using Line = std::tuple<const void*, int, std::uint64_t>;

  /// `thread`: its name.
  explicit InOrder(const char* thread) : name_(thread) {}
  ~InOrder() { stop(); }

  /// `ready` is asked until it returns true, then `task` runs. Neither may throw. Throws std::system_error where the thread
  /// cannot be started; nothing is posted then.
  void post(const Line& line, std::function<bool()> ready, std::function<void()> task);

  /// Whether `line` is empty: a task posted there now would be asked at once.
  bool is_idle(const Line& line) const;

  /// Runs what was posted without asking whether it is ready, then ends the thread. Tasks posted later run at once.
  void stop();

 private:
  struct Task {
    std::function<bool()> ready;
    std::function<void()> run;
  };
  void serve();

  const char* const name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Line, std::deque<Task>> lines_;  // none is empty; the front of each is under way
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atl::pytorch
