// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "atoll/infer/engine/local_engine.h"

namespace atl::infer {

/// The one thread on which an engine runs, so that nobody waits for an engine that does not come back. Used by one thread at a
/// time, but for is_busy().
class EngineThread {
 public:
  using Job = std::function<void(LocalEngine&)>;

  explicit EngineThread(std::shared_ptr<LocalEngine> engine);
  /// An engine that does not come back keeps its thread and whatever its job holds, for as long as the process lives.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Whether the job ended within the limit; what it threw is thrown here, as Error. `check` is called every 50 ms meanwhile, and what it
  /// throws ends the wait. A job that did not end goes on alone, and until it ends no other job may be given. The job
  /// must own all that it uses.
  bool run(Job job, std::chrono::duration<double> limit, const std::function<void()>& check = {});
  /// A job goes on for which nobody waits any more.
  bool is_busy() const;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace atl::infer
