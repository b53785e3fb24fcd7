// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/rounds.h"

#include <algorithm>
#include <set>

#include "tests/bench/fleet/cases.h"

namespace atl::plan::fleet {
namespace {

using test::any_fleet;
using test::Dice;
using test::kSharedLink;
using test::refusal;
using test::simple_robot;

std::ptrdiff_t on_server(const std::vector<std::size_t>& choice) {
  return std::count(choice.begin(), choice.end(), 1U);
}

TEST(FleetRounds, EqualRobotsSettle) {
  int settled = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const int count : {2, 4, 8}) {
      const std::vector<FleetRobot> robots(static_cast<std::size_t>(count), simple_robot(1, 0.4, 10, kSharedLink));
      const FleetSimulator fleet(robots, {});
      RoundOptions options;
      options.seed = 100 * seed;
      options.rounds = 100;
      const FleetRounds rounds = run_rounds(fleet, options);
      ASSERT_EQ(rounds.choices.size(), 100U);
      ASSERT_EQ(on_server(rounds.choices.front()), count);
      settled += rounds.settled < 60 ? 1 : 0;
      const double selfish = plan_fleet("selfish", fleet).value;
      const double aware = plan_fleet("aware", fleet).value;
      ASSERT_LE(rounds.plan.value, selfish * (1 + 1e-9)) << seed << ", " << count;
      ASSERT_LE(rounds.plan.value, 1.25 * aware) << seed << ", " << count;
    }
  }
  EXPECT_EQ(settled, 60);
}

// All see the same and all move: back and forth forever.
TEST(FleetRounds, WithoutDampingEqualRobotsSwing) {
  const std::vector<FleetRobot> robots(8, simple_robot(1, 0.4, 10, kSharedLink));
  const FleetSimulator fleet(robots, {});
  RoundOptions options;
  options.is_damped = false;
  const FleetRounds rounds = run_rounds(fleet, options);
  EXPECT_EQ(rounds.settled, options.rounds - 1);
  const std::set<std::ptrdiff_t> counts{on_server(rounds.choices[10]), on_server(rounds.choices[11])};
  EXPECT_EQ(counts, (std::set<std::ptrdiff_t>{0, 8}));
}

TEST(FleetRounds, ALoadIsWhatOthersUse) {
  const std::vector<FleetRobot> robots(3, simple_robot(9, 2, 0, kSharedLink));
  const FleetSimulator fleet(robots, {1, 1, 0});
  const FleetRun run = fleet.run(std::vector<std::size_t>{1, 1, 0}, {0, 200});
  const FleetLoad user = load_of(fleet, run, 0);
  EXPECT_EQ(user.sessions, 2);
  EXPECT_NEAR(user.turn_seconds, 2, 1e-9);
  EXPECT_NEAR(*user.waited, 2, 0.05);
  const FleetLoad local = load_of(fleet, run, 2);
  EXPECT_FALSE(local.waited);
  // The local robot's 200 frames last longer than the others'.
  EXPECT_NEAR(local.computing, 800 / run.seconds, 1e-9);
  EXPECT_NEAR(local.waiting, 800 / run.seconds, 0.01);
  EXPECT_NEAR(local.turn_seconds, 2, 1e-9);
}

TEST(FleetRounds, ASessionChangesForAGainOnly) {
  RoundOptions options;
  options.seed = 1;
  options.gain = 0.1;
  const std::vector<double> seconds{1, 0.95, 2};
  EXPECT_EQ(next_plan(options, 0, 0, 0, seconds, 0), 0U);
  EXPECT_EQ(next_plan(options, 0, 1, 1, seconds, 0), 1U);
  EXPECT_EQ(next_plan(options, 0, 2, 2, seconds, 0), 1U);
}

TEST(FleetRounds, OneOfAllMovesAtATimeInTheMean) {
  const std::vector<double> seconds{1, 0.5};
  constexpr std::size_t kSessions = 8;
  constexpr int kRounds = 500;
  int moves = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kSessions; ++i) {
      moves += next_plan({}, i, round, 0, seconds, kSessions - 1) == 1 ? 1 : 0;
    }
  }
  EXPECT_NEAR(moves, kRounds, 0.15 * kRounds);
}

// Compares sessions without a coordinator with one plan for all.
TEST(FleetRounds, ComeNearToPlansForAll) {
  Dice dice(241);
  constexpr int kInstances = 60;
  double distributed = 0;
  double selfish = 0;
  int settled = 0;
  for (int i = 0; i < kInstances; ++i) {
    auto robots = any_fleet(dice, dice.integer(2, 6), 4);
    for (FleetRobot& robot : robots) robot.period = robot.first = 0;
    const FleetSimulator fleet(robots, {1, 1, 0.002});
    const double aware = plan_fleet("aware", fleet).value;
    const FleetRounds rounds = run_rounds(fleet);
    distributed += rounds.plan.value / aware / kInstances;
    selfish += plan_fleet("selfish", fleet).value / aware / kInstances;
    settled += rounds.settled < 40 ? 1 : 0;
  }
  std::printf("by the best for all: %.3f without a coordinator, %.3f selfish; %d of %d settled\n", distributed, selfish,
              settled, kInstances);
  EXPECT_LT(distributed, 1.15);
  EXPECT_LT(distributed, selfish);
  EXPECT_GT(settled, 0.8 * kInstances);
}

TEST(FleetRounds, RefusesNone) {
  const std::vector<FleetRobot> robots{simple_robot(1, 1, 0, kSharedLink)};
  RoundOptions options;
  options.rounds = 0;
  EXPECT_NE(refusal([&] { run_rounds(FleetSimulator(robots, {}), options); }).find("rounds is 0"), std::string::npos);
  options = {};
  options.gain = 1;
  EXPECT_NE(refusal([&] { run_rounds(FleetSimulator(robots, {}), options); }).find("gain of a change is 1"),
            std::string::npos);
}

}  // namespace
}  // namespace atl::plan::fleet
