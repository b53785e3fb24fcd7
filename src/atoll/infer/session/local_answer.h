// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "atoll/infer/engine/engine_runs.h"
#include "atoll/infer/engine/local_engine.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/session/guard.h"

namespace atl::infer {

/// Gives an inference the graph's inputs, in order; and takes from a finished one the outputs that are tensors.
void give_inputs(const Graph& graph, Inference& inference, std::span<const Value> inputs);
std::vector<Value> outputs_from(const LoadedModel& model, Inference& inference);

/// Computes answers on the robot alone, by its own engine if it has one, otherwise operator by operator; and predicts
/// how long that takes.
class LocalAnswer {
 public:
  /// Measures the engine, and the operators for `profile_seconds` unless `profile` is given. Borrows the model. Throws
  /// as measure_profile and EngineRuns do. `check` is called between operators, at most every 50 ms; what it throws
  /// ends the measurement.
  LocalAnswer(const LoadedModel& model, std::shared_ptr<LocalEngine> engine, const std::optional<Profile>& profile,
              double profile_seconds, EngineOptions engine_options, const std::function<void()>& check = {});

  const Profile& profile() const noexcept { return profile_; }
  /// Seconds of an answer as measured at the beginning.
  double predicted() const;
  /// Seconds of an answer judging by the last ones, and by how much one may exceed them. Any thread.
  double seconds() const;
  double margin() const;
  /// Seconds of the engine; infinite if none is used.
  double engine_seconds() const;
  EngineReport engine_report() const { return engine_ ? engine_->report() : EngineReport{}; }

  /// Computes the outputs; none if `go_on`, which is called between operators and while waiting for the device or an
  /// engine, returned false. An engine is not stopped, but what `go_on` throws ends the wait for it; if the engine
  /// fails, the operators compute the answer. One thread at a time.
  std::optional<std::vector<Value>> run(std::span<const Value> inputs, const Inference::GoOn& go_on);
  /// Notes that computing took `taken` seconds where `expected` were predicted.
  void took(double expected, double taken);

 private:
  std::optional<std::vector<Value>> by_operators(std::span<const Value> inputs, const Inference::GoOn& go_on);
  bool uses_engine() const { return engine_ && engine_->is_used(); }

  const LoadedModel& model_;
  const Operators undivided_;
  Program program_;
  Profile profile_;
  std::unique_ptr<EngineRuns> engine_;  // null: none
  mutable std::mutex mutex_;
  Jitter jitter_;
};

}  // namespace atl::infer
