// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace atl::pytorch {

/// Threads that run what may block after an operation has completed: callbacks of futures (Python code takes the GIL
/// and may wait for the next operation) and copies to strided tensors. A group's own thread must not run them, because
/// the operation that they wait for may be its next one. Usually there is one thread; another is added whenever a task
/// has found all of them busy for a moment, so any number of tasks may wait for one another.
class Completions {
 public:
  /// `prepare`, if not null, is called first by each thread.
  explicit Completions(void (*prepare)() = nullptr);
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Posts a task; any thread. Tasks may overlap and start in the order in which they were posted, an urgent one before
  /// all waiting ones. Once stop() has started, and if the system cannot start a single thread, runs `task` at once.
  void post(std::function<void()> task, bool urgent = false);

  /// Runs the tasks already posted, then joins. May be called by one of its own tasks. The caller must not hold the
  /// GIL.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace atl::pytorch
