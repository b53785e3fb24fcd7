// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plan/batches/policies.h"

namespace atl::plan {

/// Computes the natural logarithm by the four basic operations alone, so that ranks on different processors get the
/// same bits. `value` must be finite and above 0.
double natural_log(double value);

/// Estimates how slow a rank is relative to its measured cost while it trains: a moving average of the windows in which
/// each new one has the weight 1/5. A two-sided CUSUM of log(observed / usual), in units of its deviation (slack 0.5,
/// limit 5), distinguishes a change from noise; the usual ratio is a moving average in which each new window has the
/// weight 1/20. After a change both averages restart. Later results depend on these members alone.
struct SpeedEstimate {
  double factor = 1;
  double usual = 1;
  int windows = 0;  ///< since the averages started, up to the number at which their weights are constant
  double risen = 0;
  double fallen = 0;
  std::vector<double> residuals;  ///< the latest, oldest first

  /// Adds a window. `ratio` is its median time divided by the unscaled cost, finite and above 0. Returns whether the
  /// speed has changed.
  bool observe(double ratio);
};

/// Batches that apply from a step on.
struct PlanChange {
  std::int64_t step = 0;
  std::vector<std::int64_t> batches;
  bool operator==(const PlanChange&) const = default;
};

struct AdapterOptions {
  double gain = 0.03;              ///< a new plan must save this share of the time (energy: joules) per sample ...
  int windows = 2;                 ///< ... this many times in a row
  double switch_seconds = 0;       ///< cost of a change, which the remaining steps must save (not energy)
  bool hysteresis = true;          ///< false: adopt every new division, as BalanceNet does
  int interval = 1;                ///< windows between two plannings
  int changes_per_epoch = 0;       ///< limit on changes; 0: no limit
  bool frozen = false;             ///< keep the plan and only estimate
  std::vector<PlanChange> replay;  ///< adopt exactly these plans at their steps; the first is at step 0

  static AdapterOptions from_json(const std::string& text);
};

/// What one rank measured in a window.
struct Observation {
  double seconds = 0;      ///< median of its compute seconds per step, without waiting for others
  std::int64_t batch = 0;  ///< its batch in those steps; 0: no measurement
  Metrics metrics;         ///< metrics that are given replace the rank's
};

/// The measurements of all ranks in a window of steps.
struct Window {
  std::int64_t step = 0;  ///< the first step after the window: a new plan applies from here
  std::int64_t epoch = 0;
  std::int64_t remaining = 0;  ///< steps from there to the end of training
  std::vector<Observation> ranks;

  static Window from_json(const std::string& text);
};

struct Decision {
  bool changed = false;
  std::int64_t version = 1;     ///< of the current plan; the first has 1
  std::vector<bool> drift;      ///< per rank: its speed has changed
  std::vector<double> factors;  ///< per rank: its time as a multiple of its cost
  double gain = 0;              ///< share of the time (energy: joules) per sample that the latest division saves
  std::string reason;

  std::string to_json() const;
};

/// Keeps a plan up to date. It uses no clock and no randomness, so ranks that observe equal windows hold equal plans.
/// Each rank's cost keeps its shape and is scaled by how slow the rank has become (SpeedEstimate).
class Adapter {
 public:
  /// Plans immediately, by request.policy. Throws as plan_batches.
  explicit Adapter(Request request, AdapterOptions options = {});

  /// Processes one window and decides whether to change the plan. Throws Error(kInvalidArgument), and changes nothing,
  /// if a rank's observation is missing or its time is not finite and above 0.
  Decision observe(const Window& window);

  const BatchPlan& plan() const noexcept { return plan_; }
  std::int64_t version() const noexcept { return static_cast<std::int64_t>(history_.size()); }
  /// All plans so far, in the form that AdapterOptions::replay takes.
  const std::vector<PlanChange>& history() const noexcept { return history_; }
  void freeze(bool frozen) noexcept { options_.frozen = frozen; }

  /// Saves and restores everything that later decisions depend on. The request and the options must be those of the
  /// adapter that was saved; Error(kInvalidArgument) if the ranks differ.
  std::string save() const;
  void restore(const std::string& text);

 private:
  void take_in(const Window& window, Decision& decision);
  /// Returns the new batches, or none if the plan stays; sets the gain and the reason.
  std::vector<std::int64_t> decide(const Window& window, Decision& decision);
  std::vector<std::int64_t> replayed(std::int64_t step) const;
  void adopt(std::int64_t step, std::vector<std::int64_t> batches);

  Request request_;  // as given, with its ranks' metrics updated by the windows
  Request current_;  // with costs scaled by the estimates
  AdapterOptions options_;
  std::vector<SpeedEstimate> speeds_;
  BatchPlan plan_;
  std::vector<PlanChange> history_;
  std::int64_t windows_ = 0;
  std::int64_t epoch_ = 0;
  int changes_in_epoch_ = 0;
  int wins_ = 0;  // consecutive plannings whose gain was large enough
};

}  // namespace atl::plan
