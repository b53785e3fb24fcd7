// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/plan.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/operators/fluid_bound.h"
#include "tests/bench/fleet/cases.h"

namespace atl::plan::fleet {
namespace {

using test::any_fleet;
using test::Dice;
using test::kSharedLink;
using test::simple_robot;

// For any choice: long runs, in which the start and the end count little.
// Proves P-2.
TEST(FleetBound, NoSimulationUndercutsIt) {
  Dice dice(231);
  double closest = HUGE_VAL;
  for (int i = 0; i < 50; ++i) {
    auto robots = any_fleet(dice, dice.integer(1, 4), 4);
    for (FleetRobot& robot : robots) robot.first = 0;
    const Shared shared{dice.chance(0.5) ? 1 : dice.real(0.3, 1), static_cast<int>(dice.integer(1, 2)), 0};
    const FleetSimulator fleet(robots, shared);
    const double bound = fleet_bound(robots, shared);
    FleetOptions options;
    options.span.seconds = 30 * usual_span(fleet).seconds;
    for (int k = 0; k < 6; ++k) {
      std::vector<std::size_t> choice;
      for (std::size_t r = 0; r < robots.size(); ++r) choice.push_back(static_cast<std::size_t>(dice.integer(0, 3)));
      const FleetRun run = fleet.run(choice, options.span);
      // Work done after the last frames arrived used more than the available parts.
      const double over = std::max(1.0, run.seconds / options.span.seconds);
      ASSERT_GE(value_of(run, options) * over * (1 + 1e-9), bound) << i;
      closest = std::min(closest, value_of(run, options) / bound);
    }
  }
  EXPECT_LT(closest, 1.2);
}

TEST(FleetBound, OfARobotAloneIsTheFluidBoundAtLeast) {
  Dice dice(232);
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    auto robots = any_fleet(dice, 1, 2);
    robots[0].period = 0;
    const FleetSimulator fleet(robots, {});
    const double alone = fluid_bound(*robots[0].graph, robots[0].link).seconds;
    const double bound = fleet_bound(robots, {});
    ASSERT_GE(bound, alone * (1 - 1e-9)) << i;
    ASSERT_LE(bound, std::min(fleet.candidate(0, 0).seconds, fleet.candidate(0, 1).seconds) * (1 + 1e-9)) << i;
    equal += bound < alone * (1 + 1e-6) ? 1 : 0;
  }
  EXPECT_GT(equal, 50);  // if rows are saved, other weights may give more
}

TEST(FleetBound, CountsWhatAllNeedOfTheServer) {
  // With almost no robot, four of these take 2 s each, 8 in all, when the server has one turn.
  const std::vector<FleetRobot> robots(4, simple_robot(1000, 0.5, 0, kSharedLink));
  EXPECT_NEAR(fleet_bound(robots, {1, 1, 0}), 8, 0.6);
  EXPECT_LE(fleet_bound(robots, {1, 1, 0}), 8 + 1e-9);
  EXPECT_NEAR(fleet_bound(robots, {1, 2, 0}), 4, 0.4);
  EXPECT_NEAR(fleet_bound(robots, {1, 4, 0}), 2, 0.05);
  // On the radio likewise.
  const std::vector<FleetRobot> senders(4, simple_robot(1000, 0, 50, kSharedLink));
  EXPECT_NEAR(fleet_bound(senders, {1, 1, 0}), 8, 0.6);
  EXPECT_NEAR(fleet_bound(senders, {0.5, 1, 0}), 16, 1.2);
}

TEST(FleetBound, ARobotWithAPeriodLeavesTheRestToOthers) {
  std::vector<FleetRobot> robots(2, simple_robot(1000, 0.5, 0, kSharedLink));
  const double both = fleet_bound(robots, {});
  robots[0].period = 50;
  const double rarely = fleet_bound(robots, {});
  EXPECT_NEAR(both, 2, 0.2);
  EXPECT_NEAR(rarely, 1, 0.1);
}

}  // namespace
}  // namespace atl::plan::fleet
