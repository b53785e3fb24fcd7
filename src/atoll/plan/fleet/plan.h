// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/fleet/fleet.h"

namespace atl::plan {

struct FleetOptions {
  enum class Objective { kTotal, kWorst };
  Objective objective = Objective::kTotal;  ///< the sum of the robots' mean seconds, or the largest of them
  double joule_seconds = 0;                 ///< seconds that a robot's mean joule counts as, added to its seconds
  FleetSpan span;                           ///< of each simulation; without an end: usual_span()
  int simulations = 200;                    ///< that `aware` may use to improve what it has found
  int most_choices = 100;                   ///< where there are no more choices, `aware` simulates all of them
};

struct FleetPlan {
  std::string policy;
  std::vector<std::size_t> choice;  ///< by robot, of its candidates
  FleetRun run;
  double value = 0;         ///< of the objective
  bool is_optimum = false;  ///< all choices were simulated, and none has a smaller value
  int simulations = 0;      ///< that were needed
};

/// 15 frames of the slowest robot, each with the plan that is best for it alone.
FleetSpan usual_span(const FleetSimulator& fleet);

/// What the objective says of a run.
double value_of(const FleetRun& run, const FleetOptions& options);

/// local    each robot's fastest candidate that needs nobody; where there is none, as selfish
/// selfish  each robot's best candidate as if it were alone
/// aware    the best that is found, by simulation, and so never worse than the other two
std::vector<std::string> fleet_policies();

/// The plan of the policy. `aware` begins with the other two, goes from each to what is best by expected_seconds(), one
/// robot at a time, until nothing improves, and then does the same by simulation from the best of all four.
/// Deterministic. Error(kInvalidArgument) for a policy that is not known, a weight that is negative or infinite, and as
/// FleetSimulator::run.
FleetPlan plan_fleet(const std::string& policy, const FleetSimulator& fleet, const FleetOptions& options = {});

}  // namespace atl::plan
