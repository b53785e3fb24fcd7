// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/engine/engine_thread.h"
#include "atoll/infer/engine/local_engine.h"
#include "atoll/infer/run/executor.h"

namespace atl::infer {

struct EngineOptions {
  /// The largest deviation of the engine's floating-point outputs from the model's (deviation_of); none:
  /// usual_tolerance().
  std::optional<double> tolerance{};
  /// The limit for each of the first runs, in which some engines compile or search for kernels.
  std::chrono::duration<double> start_limit{120};
  /// Inputs for which outputs are compared, besides random ones; empty, or one for each of the graph's inputs.
  std::vector<HostBytes> example{};
  /// Called every 50 ms while the engine is waited for; what it throws ends the wait. May be null.
  std::function<void()> check{};
};

/// A session's report about its engine.
struct EngineReport {
  std::string state =
      "none";              ///< "used"; "slower" than the model's operators; "stalled"; "given up": it failed too often
  double seconds = 0;      ///< of one run, measured at the beginning
  double deviation = 0;    ///< the largest that was found at the beginning
  std::uint64_t runs = 0;  ///< that gave an answer
  std::uint64_t failures = 0;  ///< runs that threw, or returned other tensors than the model does
  std::uint64_t late = 0;      ///< runs that exceeded their time
  std::string text;            ///< the last failure
};

/// An engine as a session uses it: checked and measured first, never waited for much longer than measured, and given up
/// when it keeps failing. It runs on a thread of its own. One thread at a time, except for is_used() and report().
class EngineRuns {
 public:
  /// Computes the outputs by the model's own operators.
  using Own = std::function<std::vector<Value>(std::span<const Value>)>;

  /// Compares outputs for the example, if there is one, and for random inputs, and measures. `own_seconds`: the time of
  /// the model's own operators. Borrows the model. Throws Error(kInvalidArgument) for an engine that throws, returns
  /// other tensors than the model, or deviates from it by more than is allowed; kTimeout for one that exceeds
  /// `start_limit`; and what `own` throws.
  EngineRuns(std::shared_ptr<LocalEngine> engine, const LoadedModel& model, const Own& own, double own_seconds,
             const EngineOptions& options);

  /// Returns whether the engine is quicker than the model's own operators and has not failed too often.
  bool is_used() const;
  double seconds() const noexcept { return seconds_; }

  /// The outputs. None where the engine failed, is not used, or takes more than three times its measured time and more
  /// than the model's own operators would: then those have to compute the answer. After three such runs in a row the
  /// engine is given up. An engine that does not return is not called again until it does. `check` is called every 50
  /// ms during the wait, and what it throws ends it.
  std::optional<std::vector<Value>> run(std::span<const Value> inputs, const std::function<void()>& check = {});

  EngineReport report() const;

 private:
  std::vector<Value> first_run(std::span<const Value> inputs, const EngineOptions& options);
  void compare(std::span<const Value> inputs, std::span<const Value> expected, const EngineOptions& options);
  std::vector<Value> inputs_of(std::span<const HostBytes> bytes) const;
  void failed(const std::string& text, bool is_late);

  const LoadedModel& model_;
  EngineThread thread_;
  double seconds_ = 0;
  double limit_ = 0;
  bool is_quicker_ = false;
  mutable std::mutex mutex_;
  EngineReport counts_;
  int failed_in_row_ = 0;
};

}  // namespace atl::infer
