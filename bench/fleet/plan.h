// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/fleet/fleet.h"

namespace atl::plan::fleet {

struct FleetOptions {
  enum class Objective { kTotal, kWorst };
  Objective objective = Objective::kTotal;  ///< the sum of the robots' mean seconds, or the largest of them
  double joule_seconds = 0;                 ///< seconds added to a robot's mean seconds for each joule of its mean
  FleetSpan span;                           ///< of each simulation; usual_span() if it has no end
  int simulations = 200;                    ///< that `aware` may use to improve its best choice
  int most_choices = 100;                   ///< up to this number of choices, `aware` simulates all of them
};

struct FleetPlan {
  std::string policy;
  std::vector<std::size_t> choice;  ///< by robot, of its candidates
  FleetRun run;
  double value = 0;         ///< of the objective
  bool is_optimum = false;  ///< all choices were simulated, and none has a smaller value
  int simulations = 0;      ///< used
};

/// Returns 15 frames of the slowest robot, each with the plan that is best for it alone.
FleetSpan usual_span(const FleetSimulator& fleet);

/// Returns the value of the objective for a run.
double value_of(const FleetRun& run, const FleetOptions& options);

/// Returns the seconds of each robot's inferences with the candidates of `choice`, as expected from how long the others
/// use radio and server: a fixed point of expected_wait() and of fair shares of the radio, in the manner of approximate
/// mean value analysis (Schweitzer, "Approximate analysis of multiclass closed networks of queues", 1979). Robots with
/// a period count as often as frames arrive. An estimate, not a bound, and much faster than a simulation.
std::vector<double> expected_seconds(const FleetSimulator& fleet, std::span<const std::size_t> choice);

/// local    each robot's fastest candidate that does not use the server; if there is none, as selfish
/// selfish  each robot's best candidate as if it were alone
/// aware    the best that the search finds by simulation, never worse than the other two
std::vector<std::string> fleet_policies();

/// Plans by the policy. `aware` starts from the other two, moves from each to the best by expected_seconds(), one robot
/// at a time, until nothing improves, and then does the same by simulation from the best of all four. Deterministic.
/// Throws Error(kInvalidArgument) for an unknown policy and for a weight that is negative or infinite, and as
/// FleetSimulator::run.
FleetPlan plan_fleet(const std::string& policy, const FleetSimulator& fleet, const FleetOptions& options = {});

/// Returns a lower bound in seconds on the long-run sum of the robots' mean times, whatever their plans, candidates or
/// not, and whatever the order on radio and server. A robot that infers every T seconds uses parts of the radio's time
/// and of the server's, whose sums are at most what is available; and for any weights of robot, radio and server that
/// add up to 1, its plan's weighted sum of busy times is at least a minimum cut (FluidBounds::least). So its mean time
/// is at least a decreasing function of its parts. The least sum of these functions over all ways to distribute the
/// parts is bounded by prices for the parts (Everett, "Generalized Lagrange multiplier method for solving problems of
/// optimum allocation of resources", 1963): parts are evaluated on a grid, each cell with the price of its lower and
/// the time of its upper end, and the best of many prices is taken. On full-duplex links only the way up counts as
/// shared. Candidates are ignored. Throws as FleetSimulator.
double fleet_bound(std::span<const FleetRobot> robots, const Shared& shared);

/// Plans several robots on one server and one radio by each policy; docs/planning.md ("Several robots") describes the
/// JSON of request and answer. Throws Error(kInvalidArgument) that names the key if the request is invalid or a key
/// unknown, and as make_table, FleetSimulator and plan_fleet.
std::string plan_fleet_json(const std::string& request);

}  // namespace atl::plan::fleet
