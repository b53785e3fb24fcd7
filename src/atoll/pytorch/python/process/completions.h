// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace atl::pytorch {

/// Threads that run what may wait after an operation has completed: callbacks of futures (Python code takes the GIL and may
/// wait for the next operation) and copies to strided tensors. A group's own thread must not, because the operation waited
/// for could be its next one. Usually one thread; another joins whenever a task has found all of them busy for a moment, so
/// tasks may wait for one another, however many they are.
class Completions {
 public:
  Completions();

  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Any thread. Tasks may overlap and start in the order posted, an urgent one before all that wait. After stop() has begun,
  /// and where the system has not one thread to give, runs `task` at once.
  void post(std::function<void()> task, bool urgent = false);

  /// Runs the tasks already posted, then joins. May be called by one of its own tasks. The caller must not hold the GIL.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace atl::pytorch
