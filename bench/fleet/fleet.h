// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "bench/fleet/course.h"

namespace atl::plan::fleet {

/// A robot that infers repeatedly, with a few plans to choose from, such as those of a PlanTable.
struct FleetRobot {
  std::shared_ptr<const OperatorGraph> graph;  ///< equal robots may share it
  LinkCost link;                               ///< as if no other robot used the radio
  RobotPower power;
  double period = 0;  ///< seconds between frames; 0: each arrives when the one before it is done
  double first = 0;   ///< seconds until the first frame arrives
  std::vector<OperatorPlan> candidates;
};

/// Resources that all robots share.
struct Shared {
  /// The share of the radio's time that is available to them. All messages on the radio get equal parts of it at any
  /// moment, whatever the rates of their robots: fair airtime. If the robots' links are half duplex there is one medium
  /// for both directions, otherwise one for each.
  double airtime = 1;
  int turns = 1;           ///< robots for which the server computes at once; others wait in the order of their requests
  double patience = 2e-3;  ///< seconds for which a robot keeps its turn while it waits for rows
};

/// When a simulation ends: no frames arrive at or after `seconds`, and none beyond the first `frames` of each robot.
/// Frames that have arrived are completed.
struct FleetSpan {
  double seconds = 0;  ///< 0: no limit
  int frames = 0;      ///< 0: no limit; one of the two must be given
};

/// Statistics of the frames of one robot.
struct RobotUse {
  int frames = 0;
  double mean = 0;           ///< seconds from a frame's arrival to its last output on the robot
  double p95 = 0;            ///< the least time within which 95 % of the frames are done
  double joules = 0;         ///< per frame, from its start to its last output; the radio counts for its airtime only
  double frame_wait = 0;     ///< mean seconds that a frame waits for the one before it
  double radio_wait = 0;     ///< mean seconds by which sharing delays messages
  double turn_wait = 0;      ///< mean seconds that the server's part waits for turns
  double on_radio = 0;       ///< messages on the radio, mean over the whole time
  double on_server = 0;      ///< share of the whole time in which the server computes for it
  double before_server = 0;  ///< share of the whole time in which it waits for a turn
  int turns = 0;             ///< granted to it
};

/// Throws as check() of graphs and links, and Error(kInvalidArgument) for a robot without a graph, a mix of half-duplex
/// and full-duplex links, periods and first frames that are negative or infinite, an airtime outside (0, 1], turns
/// below 1, and a patience that is negative or infinite.
void check(std::span<const FleetRobot> robots, const Shared& shared);

struct FleetRun {
  std::vector<RobotUse> robots;
  double seconds = 0;  ///< until everything was done
};

/// Simulates all robots together, event by event and deterministically. Frames of one robot do not overlap: one that
/// arrives during another waits. Each machine and each robot's link behave as in simulate(), but the radio is shared
/// and the server computes in turns: a robot's part requests a turn when it has the rows to continue, and yields it
/// when it is done or has waited for rows for `patience`. A robot that is alone takes, for each frame, exactly the time
/// of simulate(), up to rounding, if airtime is 1.
class FleetSimulator {
 public:
  /// Throws as check() and simulate(), and Error(kInvalidArgument) for a robot without candidates.
  FleetSimulator(std::span<const FleetRobot> robots, const Shared& shared);

  std::span<const FleetRobot> robots() const noexcept { return robots_; }
  const Shared& shared() const noexcept { return shared_; }
  /// Returns a candidate with its prediction on the robot's link.
  const OperatorPlan& candidate(std::size_t robot, std::size_t plan) const { return candidates_.at(robot).at(plan); }
  std::size_t candidates(std::size_t robot) const { return candidates_.at(robot).size(); }

  /// Simulates with the candidate `choice[i]` of each robot i. Throws Error(kInvalidArgument) unless there is one valid
  /// choice for each robot and the span has an end.
  FleetRun run(std::span<const std::size_t> choice, const FleetSpan& span) const;

 private:
  std::vector<FleetRobot> robots_;  // without candidates
  Shared shared_;
  std::vector<std::vector<OperatorPlan>> candidates_;
  std::vector<std::vector<Course>> courses_;
};

}  // namespace atl::plan::fleet
