// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plan/batches/drift.h"
#include "atoll/plan/batches/policies.h"

namespace atl::plan {

/// Batches that are in force from a step on.
struct PlanChange {
  std::int64_t step = 0;
  std::vector<std::int64_t> batches;
  bool operator==(const PlanChange&) const = default;
};

struct AdapterOptions {
  double gain = 0.03;              ///< a new plan must save this share of the time (energy: joules) per sample ...
  int windows = 2;                 ///< ... in so many plannings in a row
  double switch_seconds = 0;       ///< what a change costs; the steps that remain must save more, but for energy
  bool hysteresis = true;          ///< false: every new division is adopted, as BalanceNet does
  int interval = 1;                ///< windows from one planning to the next
  int changes_per_epoch = 0;       ///< at most so many; 0 means any number
  bool frozen = false;             ///< keep the plan and only estimate
  std::vector<PlanChange> replay;  ///< adopt these at their steps, and nothing else; the first is at step 0

  static AdapterOptions from_json(const std::string& text);
};

/// What one rank measured in a window.
struct Observation {
  double seconds = 0;      ///< median of its compute seconds per step, without waiting for others
  std::int64_t batch = 0;  ///< its batch in those steps; 0 tells nothing
  Metrics metrics;         ///< those that are stated replace the rank's
};

/// All that the ranks measured in a window of steps.
struct Window {
  std::int64_t step = 0;  ///< the first step after the window: a new plan is in force from here
  std::int64_t epoch = 0;
  std::int64_t remaining = 0;  ///< steps from there to the end of training
  std::vector<Observation> ranks;

  static Window from_json(const std::string& text);
};

struct Decision {
  bool changed = false;
  std::int64_t version = 1;     ///< of the plan now in force; the first has 1
  std::vector<bool> drift;      ///< per rank: its speed has changed
  std::vector<double> factors;  ///< per rank: how many times as slow as its cost
  double gain = 0;              ///< what the policy's newest division saves, as a share of what it is to save
  std::string reason;

  std::string to_json() const;
};

/// Keeps a plan up to date. It has no clock and no randomness of its own: ranks that feed equal windows hold equal
/// plans. Each rank's cost keeps its shape and is scaled by how slow the rank has become (SpeedEstimate).
class Adapter {
 public:
  /// Plans at once, by request.policy. Throws Error(kInvalidArgument) as plan_batches does.
  explicit Adapter(Request request, AdapterOptions options = {});

  /// Takes in one window, and decides. Throws Error(kInvalidArgument), and changes nothing, where a rank's
  /// observation is missing or is no time.
  Decision observe(const Window& window);

  const BatchPlan& plan() const noexcept { return plan_; }
  std::int64_t version() const noexcept { return static_cast<std::int64_t>(history_.size()); }
  /// All plans so far, in a form that AdapterOptions::replay takes.
  const std::vector<PlanChange>& history() const noexcept { return history_; }
  void freeze(bool frozen) noexcept { options_.frozen = frozen; }

  /// All that decides what it does next, and the same back. The request and the options must be those of the adapter
  /// that was saved; Error(kInvalidArgument) when the ranks differ.
  std::string save() const;
  void restore(const std::string& text);

 private:
  Decision taken_and_decided(const Window& window);
  void take_in(const Window& window, Decision& decision);
  /// Nothing when the plan stays; sets the gain and the reason.
  std::vector<std::int64_t> decide(const Window& window, Decision& decision);
  std::vector<std::int64_t> replayed(std::int64_t step) const;
  void adopt(std::int64_t step, std::vector<std::int64_t> batches);

  Request request_;  // as given; its ranks' metrics follow the windows
  Request current_;  // with costs scaled by the estimates
  AdapterOptions options_;
  std::vector<SpeedEstimate> speeds_;
  BatchPlan plan_;
  std::vector<PlanChange> history_;
  std::int64_t windows_ = 0;
  std::int64_t epoch_ = 0;
  int changes_in_epoch_ = 0;
  int wins_ = 0;  // plannings in a row whose gain was large enough
};

}  // namespace atl::plan
