// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "atoll/infer/engine/local_engine.h"

namespace atl::infer {

/// The one thread on which an engine runs, so that no caller waits for an engine that does not return. Used by one
/// thread at a time, except for is_busy().
class EngineThread {
 public:
  using Job = std::function<void(LocalEngine&)>;

  explicit EngineThread(std::shared_ptr<LocalEngine> engine);
  /// An engine that does not return keeps its thread and everything its job holds for as long as the process lives.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Runs the job and returns whether it ended within the limit; what it threw is thrown here, as Error. `check` is
  /// called every 50 ms during the wait, and what it throws ends it. A job that did not end continues alone, and until
  /// it ends no other job may be given. The job must own everything it uses.
  bool run(Job job, std::chrono::duration<double> limit, const std::function<void()>& check = {});
  /// Returns whether a job is still running that is no longer waited for.
  bool is_busy() const;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace atl::infer
