// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace atl {

/// A named thread that owns objects: it waits for descriptors and timers (epoll) and runs tasks that others post.
/// Handlers run on the loop thread only, one at a time, and must not block.
class Loop {
 public:
  using Task = std::function<void()>;
  using FdHandler = std::function<void(std::uint32_t epoll_events)>;
  using TimerId = std::uint64_t;

  /// `name` is the thread's name (at most 15 characters are kept).
  explicit Loop(const std::string& name);

  /// Runs the tasks already posted, then joins. Must not be called on the loop thread.
  ~Loop();

  /// Any thread. Tasks run in the order posted. Once the loop is stopping, and in a forked child, drops the task and
  /// returns false.
  bool post(Task task);

  /// Runs `task` on the loop and waits for it; on the loop thread, runs it directly. Exceptions propagate. Throws
  /// Error(kAborted) when post() would return false.
  void run_and_wait(const Task& task);

  bool on_loop_thread() const noexcept;

  // The rest is called on the loop thread only.

  /// Watches `fd` (level-triggered unless EPOLLET is among the events) until remove_fd_on_loop; `fd` must stay open
  /// until then.
  void add_fd_on_loop(int fd, std::uint32_t epoll_events, FdHandler handler);
  void modify_fd_on_loop(int fd, std::uint32_t epoll_events);
  void remove_fd_on_loop(int fd);

  /// Calls `task` once after `delay`, or every `delay` if `repeat` is set.
  TimerId add_timer_on_loop(std::chrono::milliseconds delay, bool repeat, Task task);
  void cancel_timer_on_loop(TimerId id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl
