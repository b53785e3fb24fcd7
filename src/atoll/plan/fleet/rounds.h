// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/plan/fleet/plan.h"
#include "atoll/plan/fleet/server_load.h"

namespace atl::plan {

struct RoundOptions {
  int rounds = 48;
  FleetSpan span;          ///< of a round; without an end: usual_span()
  std::uint64_t seed = 0;  ///< of the sessions' choosers, with the robot's number added
  double gain = 0.05;      ///< what a change must save
  bool is_damped = true;   ///< false: everyone who would gain moves at once, to see why nobody should
};

/// What happens when nobody plans for all.
struct FleetRounds {
  std::vector<std::vector<std::size_t>> choices;  ///< by round
  std::vector<double> totals;                     ///< by round, the sum of the robots' mean seconds
  int settled = 0;                                ///< the first round since which nobody has changed
  FleetPlan plan;                                 ///< of the last round: "distributed"
};

/// What a session of the robot learns from a run: of the server about the others, and of its own inferences.
ServerLoad load_of(const FleetSimulator& fleet, const FleetRun& run, std::size_t robot);

/// Rounds in which each robot keeps its plan; after each one its session predicts all its candidates alone, with the
/// rate that its messages will have and the wait for a turn that the load makes likely, and a PlanChooser decides.
/// Begins with the selfish choice. Every round is a simulation of its own. Error(kInvalidArgument) for less than one
/// round, and as PlanChooser and FleetSimulator::run.
FleetRounds run_rounds(const FleetSimulator& fleet, const RoundOptions& options = {});

}  // namespace atl::plan
