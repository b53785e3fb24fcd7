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

/// The graph's inputs, in order, for an inference; and its outputs that are tensors, which are there.
void give_inputs(const Graph& graph, Inference& inference, std::span<const Value> inputs);
std::vector<Value> outputs_from(const LoadedModel& model, Inference& inference);

/// How a robot answers alone: by its own engine where it has one, else operator by operator; and how long that takes.
class LocalAnswer {
 public:
  /// Measures what is not given: the operators for `profile_seconds`, and the engine. The model is borrowed. Errors as
  /// measure_profile and EngineRuns. `check` is called between operators, at most every 50 ms; what it throws ends the
  /// measuring.
  LocalAnswer(const LoadedModel& model, std::shared_ptr<LocalEngine> engine, const std::optional<Profile>& profile,
              double profile_seconds, EngineOptions engine_options, const std::function<void()>& check = {});

  const Profile& profile() const noexcept { return profile_; }
  /// Seconds of an answer as they were measured at the beginning.
  double predicted() const;
  /// As the last ones were, and how much later one may be. Any thread.
  double seconds() const;
  double margin() const;
  /// What the engine takes; infinite where none is used.
  double engine_seconds() const;
  EngineReport engine_report() const { return engine_ ? engine_->report() : EngineReport{}; }

  /// The outputs; none where `go_on`, which is asked between operators and while the device or an engine is waited for, said
  /// no. An engine is not stopped, but what `go_on` throws ends the wait for it; where it fails, the operators answer. One
  /// thread at a time.
  std::optional<std::vector<Value>> run(std::span<const Value> inputs, const Inference::GoOn& go_on);
  /// What was expected to take so many seconds has taken so many.
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
