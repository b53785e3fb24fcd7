// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <mutex>

namespace atl::pytorch {

/// Runs tasks that issue work to a device and its library: one at a time, in the order in which they were pushed, on
/// the first thread that calls run(). A task may block until other ranks of the island run theirs, but must not wait
/// for a task that is pushed after it. Thread-safe.
class Issuer {
 public:
  using Task = std::function<void()>;

  /// Appends a task; any thread, does not block. A thread must call run() afterwards. Tasks must not throw.
  void push(Task task);

  /// Runs the pushed tasks, unless another thread is running them.
  void run();

 private:
  std::mutex mutex_;
  std::deque<Task> tasks_;
  bool is_running_ = false;
};

}  // namespace atl::pytorch
