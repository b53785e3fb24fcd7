// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/profile.h"
#include "atoll/infer/run/profiled.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/session/guard.h"
#include "atoll/plan/operators/envelope.h"
#include "atoll/plan/operators/policies.h"

namespace atl::infer {

struct PlanOptions {
  std::string policy =
      "auto";  ///< "auto": the table's choice for each inference; others (operator_policies): always that plan
  plan::OperatorOptions operators = {};
  plan::TableOptions table = {};
  plan::RobotPower power = {};
};

/// A plan with the robot's program and the costs of its steps.
struct PreparedPlan {
  Plan plan;
  Program program;
  Guard guard;
};

/// The plans of a model for two devices and all rates of their link, ready to run. Not changed once it is made.
struct PreparedPlans {
  ProfiledGraph profiled;
  plan::PlanTable table;
  std::vector<std::optional<PreparedPlan>> plans;  ///< by plan of the table; none for plans without a server
  std::optional<std::size_t> pinned;               ///< the policy's plan, unless it is "auto"
  std::vector<double> bound_rates;                 ///< ascending
  std::vector<double> bounds;                      ///< lower bounds of the seconds of any plan at these rates
  double local_seconds = 0;                        ///< of the whole model on the robot

  /// The lower bound at this rate up: that of the next higher rate in `bound_rates`.
  double bound_at(double rate) const;
};

/// Makes plans for these profiles over a link with this ratio of rates and this latency. If the profiles were measured
/// along different dimensions, operators stay whole. Takes up to a second for large models. Throws as make_table and
/// make_plan do.
std::shared_ptr<const PreparedPlans> prepare_plans(const Graph& graph, const Profile& robot, const Profile& server,
                                                   const plan::LinkCost& link, const PlanOptions& options);

/// A plan and the predicted time of its answer.
struct PlanChoice {
  std::size_t plan = 0;
  double seconds = 0;
};

/// Chooses the plan with the least mean time over the likely rates, given that the robot has its own answer after
/// `ceiling` seconds whatever the link does; among plans within the table's margin, the simplest. Plan 0 is local and
/// takes `local` seconds. `is_usable`, by plan, tells which others the server can run. They take `wait` seconds more,
/// for their first turn on the server.
PlanChoice choose_plan(const PreparedPlans& prepared, std::span<const plan::RateWeight> likely, double local,
                       double ceiling, const std::vector<bool>& is_usable, double wait = 0);

}  // namespace atl::infer
