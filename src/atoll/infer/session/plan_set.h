// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/profile.h"
#include "atoll/infer/run/division.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/session/guard.h"
#include "atoll/plan/operators/envelope.h"
#include "atoll/plan/operators/policies.h"

namespace atl::infer {

struct PlanSetOptions {
  std::string policy =
      "auto";  ///< "auto": the table's choice for each inference; others (operator_policies): that plan
  plan::OperatorOptions operators = {};
  plan::TableOptions table = {};
  plan::RobotPower power = {};
};

/// One plan with what the robot needs to run it.
struct SplitPlan {
  plan::OperatorPlan plan;
  Division division;
  Program program;  ///< the robot's
  Guard guard;
  bool robot_computes = false;
};

/// The plans of a model between two devices, over all rates of a link. Not changed once it is made.
struct PlanSet {
  std::shared_ptr<const Operators> operators;
  plan::OperatorGraph lowered;
  plan::PlanTable table;
  std::vector<std::shared_ptr<const SplitPlan>> splits;  ///< by plan of the table; null for those that use no server
  std::optional<std::size_t> pinned;                     ///< the policy's plan
  std::vector<double> bound_rates;                       ///< ascending
  std::vector<double> bounds;                            ///< seconds that no plan undercuts at these rates
  double local_seconds = 0;                              ///< of the whole model on the robot

  /// What no plan undercuts at this rate up: the bound of the next higher rate that was looked at.
  double bound_at(double rate) const;
};

/// Plans for these profiles over a link with this proportion of rates and this latency. Where the profiles were measured along
/// different dimensions, operators stay whole. Takes up to a second for large models. Errors as make_table and make_plan.
std::shared_ptr<const PlanSet> make_plan_set(const Graph& graph, const Profile& robot, const Profile& server,
                                             const plan::LinkCost& link, const PlanSetOptions& options);

/// A plan, and what its answer is expected to take.
struct PlanChoice {
  std::size_t plan = 0;
  double seconds = 0;
};

/// The plan of the least mean time over the likely rates, when the robot's own answer is there after `ceiling` seconds
/// whatever the link does; of plans within the table's margin the simplest. Plan 0 is local and takes `local` seconds.
/// `is_usable`, by plan, says which others the server can run. They take `wait` seconds more, for which
/// their first turn there is waited for.
PlanChoice choose_plan(const PlanSet& set, std::span<const plan::RateWeight> likely, double local, double ceiling,
                       const std::vector<bool>& is_usable, double wait = 0);

}  // namespace atl::infer
