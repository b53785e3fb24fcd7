// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <mutex>

namespace atl::pytorch {

/// Tasks that issue work to a device and its library: they run one at a time in the order in which they were pushed, on whichever
/// thread comes first. A task may block until other ranks of the island run theirs, never for anything that is pushed after it.
/// Thread-safe.
class Issuer {
 public:
  using Task = std::function<void()>;

  /// Any thread; blocks nowhere. Somebody has to call run() afterwards. Tasks must not throw.
  void push(Task task);

  /// Runs what has been pushed, unless another thread is at it.
  void run();

 private:
  std::mutex mutex_;
  std::deque<Task> tasks_;
  bool is_running_ = false;
};

}  // namespace atl::pytorch
