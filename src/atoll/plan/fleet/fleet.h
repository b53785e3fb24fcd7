// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "atoll/plan/fleet/course.h"
#include "atoll/plan/operators/operators.h"

namespace atl::plan {

/// A robot that infers again and again, with a few plans to choose from, such as those of a PlanTable.
struct FleetRobot {
  std::shared_ptr<const OperatorGraph> graph;  ///< equal robots may share it
  LinkCost link;                               ///< as if nobody else used the radio
  RobotPower power;
  double period = 0;  ///< seconds from frame to frame; 0: the next one comes when the last is done
  double first = 0;   ///< seconds until the first frame comes
  std::vector<OperatorPlan> candidates;
};

/// What all robots use together.
struct Shared {
  /// The share of the radio's time that is left for them. All messages on the radio get equal parts of it at any
  /// moment, whatever the rates of their robots: fair airtime. One medium for both directions where the robots' links
  /// are half duplex, otherwise one for each.
  double airtime = 1;
  int turns = 1;  ///< robots for which the server computes at once; others wait in the order in which they asked
  double patience = 2e-3;  ///< seconds for which a turn is kept while rows are awaited; then it is given up
};

/// When a simulation ends: no frames come at or after `seconds`, and none beyond the first `frames` of each robot. What
/// has come is computed to its end.
struct FleetSpan {
  double seconds = 0;  ///< 0: no limit
  int frames = 0;      ///< likewise; one of the two must be given
};

/// What the frames of one robot took.
struct RobotUse {
  int frames = 0;
  double mean = 0;           ///< seconds from when a frame comes to its last output on the robot
  double p95 = 0;            ///< the least time within which 95 % of the frames are done
  double joules = 0;         ///< mean of a frame, from its start to its last output; the radio counts its airtime alone
  double frame_wait = 0;     ///< mean seconds of a frame until the one before it is done
  double radio_wait = 0;     ///< mean seconds by which messages take longer than alone
  double turn_wait = 0;      ///< mean seconds in which the server's part waits for turns
  double on_radio = 0;       ///< messages that are on the radio, mean over the whole time
  double on_server = 0;      ///< the part of the whole time in which the server computes for it
  double before_server = 0;  ///< the part in which it waits for a turn
  int turns = 0;             ///< that it had
};

/// Error(kInvalidArgument) as check() of graphs and links, for a robot without a graph, for links of which some are
/// half duplex, for periods and first frames that are negative or infinite, an airtime outside (0, 1], turns below 1,
/// and a patience that is negative or infinite.
void check(std::span<const FleetRobot> robots, const Shared& shared);

struct FleetRun {
  std::vector<RobotUse> robots;
  double seconds = 0;  ///< until all was done
};

/// All robots together, as a deterministic simulation of events. Without frames that overlap: one that comes while
/// another of the same robot runs, waits. Each machine and each robot's link do what simulate() says, but the radio is
/// shared, and the server computes in turns: a robot's part asks for one when it has the rows to go on, and gives it up
/// when it is done or has waited for rows for `patience`. A robot that is alone takes, for each frame, exactly what
/// simulate() says, up to rounding, if airtime is 1.
class FleetSimulator {
 public:
  /// Error(kInvalidArgument) as check() and simulate(), and for a robot without candidates.
  FleetSimulator(std::span<const FleetRobot> robots, const Shared& shared);

  std::span<const FleetRobot> robots() const noexcept { return robots_; }
  const Shared& shared() const noexcept { return shared_; }
  /// A candidate with its prediction on the robot's link.
  const OperatorPlan& candidate(std::size_t robot, std::size_t plan) const { return candidates_.at(robot).at(plan); }
  std::size_t candidates(std::size_t robot) const { return candidates_.at(robot).size(); }

  /// With the candidate `choice[i]` of each robot i. Error(kInvalidArgument) for a choice that is not one for each
  /// robot or not there, and for a span without an end.
  FleetRun run(std::span<const std::size_t> choice, const FleetSpan& span) const;

 private:
  std::vector<FleetRobot> robots_;  // without candidates
  Shared shared_;
  std::vector<std::vector<OperatorPlan>> candidates_;
  std::vector<std::vector<Course>> courses_;
};

FleetRun simulate_fleet(std::span<const FleetRobot> robots, std::span<const std::size_t> choice, const Shared& shared,
                        const FleetSpan& span);

}  // namespace atl::plan
