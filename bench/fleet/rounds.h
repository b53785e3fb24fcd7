// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "atoll/plan/operators/server_load.h"
#include "bench/fleet/plan.h"

namespace atl::plan::fleet {

struct RoundOptions {
  int rounds = 48;
  FleetSpan span;          ///< of a round; usual_span() if it has no end
  std::uint64_t seed = 0;  ///< for the sessions' choosers, with the robot's number added
  double gain = 0.05;      ///< what a change must save
  bool is_damped = true;   ///< false: every session that would gain changes at once, to show why damping is needed
};

/// The result when each session decides for itself.
struct FleetRounds {
  std::vector<std::vector<std::size_t>> choices;  ///< by round
  std::vector<double> totals;                     ///< by round, the sum of the robots' mean seconds
  int settled = 0;                                ///< the first round after which no session changes
  FleetPlan plan;                                 ///< of the last round: "distributed"
};

/// What a robot's session learns from a run: from the server about the others, and from its own inferences.
struct FleetLoad : ServerLoad {
  double messages = 0;  ///< mean number of others' messages on the radio
  int sessions = 0;     ///< others that may change their plans
};
FleetLoad load_of(const FleetSimulator& fleet, const FleetRun& run, std::size_t robot);

/// Returns the next plan of a robot's session, which knows only its own predictions: `seconds` are by plan, with the
/// expected waits; `current` is one of the plans. It changes only for a gain, and only with the probability 1 / (others
/// + 1), so that equal sessions do not all move at once. In a congestion game any sequence of improvements, one at a
/// time, ends (Rosenthal, "A class of games possessing pure-strategy Nash equilibria", 1973).
std::size_t next_plan(const RoundOptions& options, std::size_t robot, int round, std::size_t current,
                      std::span<const double> seconds, int others);

/// Simulates rounds in which each robot keeps its plan; after each one its session predicts all its candidates alone,
/// with the rate that its messages will have and the wait for a turn that the load makes likely, and next_plan()
/// decides. Begins with the selfish choice. Every round is a simulation of its own. Throws Error(kInvalidArgument) for
/// fewer than one round and a gain outside [0, 1), and as FleetSimulator::run.
FleetRounds run_rounds(const FleetSimulator& fleet, const RoundOptions& options = {});

}  // namespace atl::plan::fleet
