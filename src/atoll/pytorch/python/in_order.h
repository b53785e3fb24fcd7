// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace atl::pytorch {

/// A thread that runs tasks in the order in which they were posted, each when it is ready: sends from an accelerator, whose
/// bytes are still on their way to the host. Thread-safe; the thread starts with the first task.
class InOrder {
 public:
  ~InOrder() { stop(); }

  /// `ready` is asked until it returns true, then `task` runs. Neither may throw.
  void post(std::function<bool()> ready, std::function<void()> task);

  /// Whether a task posted now would run at once.
  bool is_idle() const;

  /// Runs what was posted without asking whether it is ready, then ends the thread. Tasks posted later run at once.
  void stop();

 private:
  struct Task {
    std::function<bool()> ready;
    std::function<void()> run;
  };
  void serve();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the front is under way
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atl::pytorch
