// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/plan.h"

#include <algorithm>
#include <cmath>

#include "tests/bench/fleet/cases.h"

namespace atl::plan::fleet {
namespace {

using test::any_fleet;
using test::Dice;
using test::refusal;
using test::simple_robot;

using Candidates = std::vector<std::size_t>;

// Finds the best of all choices by simulation.
double least_value(const FleetSimulator& fleet, const FleetOptions& options) {
  double least = HUGE_VAL;
  Candidates choice(fleet.robots().size(), 0);
  while (true) {
    least = std::min(least, value_of(fleet.run(choice, options.span), options));
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == fleet.candidates(i)) choice[i++] = 0;
    if (i == choice.size()) return least;
  }
}

FleetOptions any_objective(Dice& dice) {
  FleetOptions options;
  if (dice.chance(0.3)) options.objective = FleetOptions::Objective::kWorst;
  if (dice.chance(0.3)) options.joule_seconds = dice.real(0, 0.2);
  return options;
}

// Compares the search with the best of all choices, where it may not simulate them all.
TEST(FleetPlan, ComesCloseToTheBestOfAllChoices) {
  Dice dice(211);
  constexpr int kInstances = 300;
  int exact = 0;
  int better_than_selfish = 0;
  double worst = 1;
  double sum = 0;
  double selfish_sum = 0;
  for (int i = 0; i < kInstances; ++i) {
    const auto robots = any_fleet(dice, dice.integer(1, 3), dice.integer(2, 6));
    const FleetSimulator fleet(robots, {1, static_cast<int>(dice.integer(1, 2)), 0});
    FleetOptions options = any_objective(dice);
    options.span = usual_span(fleet);
    options.most_choices = 0;
    const FleetPlan aware = plan_fleet("aware", fleet, options);
    const FleetPlan selfish = plan_fleet("selfish", fleet, options);
    const double least = least_value(fleet, options);
    ASSERT_EQ(aware.value, value_of(fleet.run(aware.choice, options.span), options));
    ASSERT_FALSE(aware.is_optimum);
    ASSERT_GE(aware.value, least) << i;
    ASSERT_LE(aware.value, selfish.value) << i;
    ASSERT_LE(aware.value, plan_fleet("local", fleet, options).value) << i;
    const double gap = aware.value / least;
    exact += gap <= 1 + 1e-9 ? 1 : 0;
    better_than_selfish += aware.value < 0.99 * selfish.value ? 1 : 0;
    worst = std::max(worst, gap);
    sum += gap;
    selfish_sum += selfish.value / least;
  }
  RecordProperty("exact", exact);
  std::printf("of %d: %d best of all choices, mean %.4f and at most %.3f of it; selfish %.3f; %d better than selfish\n",
              kInstances, exact, sum / kInstances, worst, selfish_sum / kInstances, better_than_selfish);
  EXPECT_GT(exact, 0.95 * kInstances);
  EXPECT_LT(sum / kInstances, 1.005);
  EXPECT_GT(better_than_selfish, 50);
}

TEST(FleetPlan, SaysThatAllChoicesWereSimulated) {
  Dice dice(212);
  for (int i = 0; i < 40; ++i) {
    const auto robots = any_fleet(dice, dice.integer(1, 3), 4);
    const FleetSimulator fleet(robots, {});
    FleetOptions options = any_objective(dice);
    options.span = usual_span(fleet);
    const FleetPlan aware = plan_fleet("aware", fleet, options);
    EXPECT_TRUE(aware.is_optimum);
    EXPECT_EQ(aware.value, least_value(fleet, options)) << i;
    EXPECT_EQ(aware.simulations, std::pow(4, robots.size()));
    EXPECT_EQ(aware.policy, "aware");
  }
}

// The server takes 0.5 s where the robot takes 1: alone every robot offloads; together only some should.
TEST(FleetPlan, LeavesTheServerToSome) {
  const std::vector<FleetRobot> robots(8, simple_robot(1, 0.5, 0, {100, 100, 0, true}));
  const FleetSimulator fleet(robots, {1, 1, 0});
  const FleetPlan selfish = plan_fleet("selfish", fleet);
  const FleetPlan aware = plan_fleet("aware", fleet);
  EXPECT_EQ(std::count(selfish.choice.begin(), selfish.choice.end(), 1U), 8);
  EXPECT_GT(selfish.value, 25);  // nearly 8 * 4: in the first frames fewer wait
  // A robot alone on the server saves half a second; two take 1 s each, as if local.
  EXPECT_EQ(std::count(aware.choice.begin(), aware.choice.end(), 1U), 1);
  EXPECT_NEAR(aware.value, 7.5, 1e-9);
  EXPECT_EQ(plan_fleet("local", fleet).value, 8);
  EXPECT_LE(aware.simulations, 2 + 2 + FleetOptions{}.simulations);
}

TEST(FleetPlan, WeighsEnergy) {
  // The server is a little slower than the robot, which waits for it with less power.
  const std::vector<FleetRobot> robots{simple_robot(1, 1.2, 0, {100, 100, 0, true})};
  const FleetSimulator fleet(robots, {1, 1, 0});
  FleetOptions options;
  EXPECT_EQ(plan_fleet("aware", fleet, options).choice, Candidates{0});
  options.joule_seconds = 1;
  EXPECT_EQ(plan_fleet("aware", fleet, options).choice, Candidates{1});
  EXPECT_EQ(plan_fleet("selfish", fleet, options).choice, Candidates{1});
  EXPECT_NEAR(plan_fleet("aware", fleet, options).value, 1.2 + 1.2 * 4.04, 1e-9);
}

TEST(FleetPlan, TheWorstRobotIsItsOwnObjective) {
  // Both benefit from the server; the second one has much more to lose.
  const LinkCost link{100, 100, 0, true};
  const std::vector<FleetRobot> robots{simple_robot(1, 0.6, 0, link), simple_robot(3, 1, 0, link)};
  const FleetSimulator fleet(robots, {1, 1, 0});
  FleetOptions options;
  options.objective = FleetOptions::Objective::kWorst;
  const FleetPlan fair = plan_fleet("aware", fleet, options);
  EXPECT_EQ(fair.choice, (Candidates{0, 1}));
  EXPECT_NEAR(fair.value, 1, 1e-9);
}

// A model, not a bound: near the simulation on average, and exact for robots that do not meet.
TEST(FleetExpectation, IsNearTheSimulation) {
  Dice dice(213);
  double error = 0;
  int count = 0;
  for (int i = 0; i < 200; ++i) {
    const auto robots = any_fleet(dice, dice.integer(1, 5), 3);
    const FleetSimulator fleet(robots, {1, static_cast<int>(dice.integer(1, 2)), 0});
    Candidates choice;
    for (std::size_t k = 0; k < robots.size(); ++k) choice.push_back(static_cast<std::size_t>(dice.integer(0, 2)));
    const std::vector<double> expected = expected_seconds(fleet, choice);
    ASSERT_EQ(expected.size(), robots.size());
    const FleetRun run = fleet.run(choice, usual_span(fleet));
    for (std::size_t k = 0; k < robots.size(); ++k) {
      const double alone = fleet.candidate(k, choice[k]).seconds;
      ASSERT_GE(expected[k], alone * (1 - 1e-12));
      if (robots.size() == 1) {
        ASSERT_NEAR(expected[k], alone, 1e-12 * alone);
      } else if (run.robots[k].frame_wait == 0 && run.robots[k].frames > 5) {
        error += std::abs(std::log(expected[k] / run.robots[k].mean));
        ++count;
      }
    }
  }
  std::printf("expected seconds differ by a factor of %.3f in the geometric mean of %d\n", std::exp(error / count),
              count);
  EXPECT_GT(count, 200);
  EXPECT_LT(error / count, std::log(1.25));
}

TEST(FleetPlan, RefusesWhatItDoesNotKnow) {
  const std::vector<FleetRobot> robots{simple_robot(1, 1, 0, {100, 100, 0, true})};
  const FleetSimulator fleet(robots, {});
  EXPECT_NE(refusal([&] { plan_fleet("kind", fleet); }).find("give one of local, selfish, aware"), std::string::npos);
  FleetOptions options;
  options.joule_seconds = -1;
  EXPECT_NE(refusal([&] { plan_fleet("aware", fleet, options); }).find("counts as is -1"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan::fleet
