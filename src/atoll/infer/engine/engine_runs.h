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
  /// How far the engine's floating-point answers may be from the model's (deviation_of); none: usual_tolerance().
  std::optional<double> tolerance{};
  /// For each of its first runs: some engines compile, or search for kernels, then.
  std::chrono::duration<double> start_limit{120};
  /// Inputs to compare the answers for, beside made ones; none, or one for each of the graph's.
  std::vector<HostBytes> example{};
  /// Called every 50 ms while the engine is waited for; what it throws ends that. Null: nothing is.
  std::function<void()> check{};
};

/// What a session knows of its engine.
struct EngineReport {
  std::string state =
      "none";              ///< "used"; "slower" than the model's operators; "stalled"; "given up": it failed too often
  double seconds = 0;      ///< of one run, measured at the beginning
  double deviation = 0;    ///< the largest of those that were found then
  std::uint64_t runs = 0;  ///< answers that it gave
  std::uint64_t failures = 0;  ///< it threw, or gave other tensors than the model does
  std::uint64_t late = 0;      ///< it was not waited for any longer
  std::string text;            ///< what went wrong the last time
};

/// An engine as a session uses it: checked and measured before, never waited for much longer than that, and given up where it
/// fails. It runs on a thread of its own. One thread at a time, but for is_used() and report().
class EngineRuns {
 public:
  /// What the model's own operators answer.
  using Own = std::function<std::vector<Value>(std::span<const Value>)>;

  /// Compares answers for the example, if there is one, and for made inputs, and measures. `own_seconds`: what the model's own
  /// operators take. The model is borrowed. Error(kInvalidArgument) for an engine that throws, gives other tensors than the
  /// model, or deviates from it further than is allowed; kTimeout for one that exceeds `start_limit`; and what `own` throws.
  EngineRuns(std::shared_ptr<LocalEngine> engine, const LoadedModel& model, const Own& own, double own_seconds,
             const EngineOptions& options);

  /// Whether it is quicker than the model's own operators, and has not failed too often.
  bool is_used() const;
  double seconds() const noexcept { return seconds_; }

  /// The outputs; none where it failed, is not used, or is later than three times its measured time or than the model's own
  /// operators would be, whichever is more: then those have to answer. After three such in a row it is given up. One that does
  /// not come back is left alone until it does. `check` is called every 50 ms meanwhile, and what it throws ends the wait.
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
