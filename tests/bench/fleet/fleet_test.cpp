// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fleet.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/bench/fleet/cases.h"

namespace atl::plan::fleet {
namespace {

using test::any_fleet;
using test::any_graph;
using test::any_shares;
using test::any_wide_link;
using test::Dice;
using test::plan_of_shares;
using test::refusal;
using test::simple_robot;

using Candidates = std::vector<std::size_t>;

constexpr std::size_t kLocal = 0;
constexpr std::size_t kOffload = 1;

FleetRun simulate_fleet(std::span<const FleetRobot> robots, std::span<const std::size_t> choice, const Shared& shared,
                        const FleetSpan& span) {
  return FleetSimulator(robots, shared).run(choice, span);
}

// 100 bytes a second, both ways.
LinkCost plain_link() { return {100, 100, 0, true}; }

TEST(Fleet, ARobotAloneTakesWhatThePredictionSays) {
  Dice dice(201);
  int with_server = 0;
  int streamed = 0;
  for (int i = 0; i < 3000; ++i) {
    FleetRobot robot;
    const OperatorGraph graph = any_graph(dice, 20, test::RowNeeds::kAny);
    robot.graph = std::make_shared<const OperatorGraph>(graph);
    robot.link = any_wide_link(dice, true);
    robot.power = {dice.real(5, 20), dice.real(1, 5), dice.real(0, 2)};
    const auto shares = dice.chance(0.3) ? everything_on(Side::kServer, graph) : any_shares(dice, graph);
    const int chunks = dice.chance(0.5) ? 1 : static_cast<int>(dice.integer(2, 9));
    robot.candidates = {plan_of_shares(shares, chunks)};
    const Timeline alone = simulate(graph, robot.link, robot.power, shares, chunks);
    const Shared shared{1, static_cast<int>(dice.integer(1, 3)), dice.chance(0.3) ? 0 : dice.real(0, 0.5)};
    const FleetRun run = simulate_fleet(std::vector{robot}, Candidates{0}, shared, {0, 1});
    ASSERT_EQ(run.robots[0].frames, 1);
    ASSERT_NEAR(run.robots[0].mean, alone.seconds, 1e-12 * (1 + alone.seconds)) << i;
    ASSERT_NEAR(run.robots[0].joules, alone.joules, 1e-11 * (1 + alone.joules)) << i;
    ASSERT_EQ(run.robots[0].p95, run.robots[0].mean);
    ASSERT_NEAR(run.robots[0].radio_wait, 0, 1e-9);
    ASSERT_EQ(run.robots[0].turn_wait, 0);
    // The same again, frame after frame.
    const RobotUse often = simulate_fleet(std::vector{robot}, Candidates{0}, shared, {0, 5}).robots[0];
    ASSERT_NEAR(often.mean, alone.seconds, 1e-9 * (1 + alone.seconds)) << i;
    with_server += alone.server_busy > 0 ? 1 : 0;
    streamed += chunks > 1 && alone.server_busy > 0 ? 1 : 0;
  }
  EXPECT_GT(with_server, 2000);
  EXPECT_GT(streamed, 800);
}

TEST(Fleet, TwoMessagesShareTheRadioFairly) {
  // 200 bytes take 2 s alone. The second robot's link is four times as fast, so its 200 bytes take half a second.
  std::vector<FleetRobot> robots{simple_robot(9, 0, 200, plain_link()), simple_robot(9, 0, 200, {400, 400, 0, true})};
  const FleetRun together = simulate_fleet(robots, Candidates{kOffload, kOffload}, {}, {0, 1});
  // Each has half of the time until the second one is done; then, after 1 s, the first has 1.5 s left.
  EXPECT_DOUBLE_EQ(together.robots[1].mean, 1);
  EXPECT_DOUBLE_EQ(together.robots[0].mean, 2.5);
  EXPECT_DOUBLE_EQ(together.robots[0].radio_wait, 0.5);
  EXPECT_DOUBLE_EQ(together.robots[1].radio_wait, 0.5);
  EXPECT_DOUBLE_EQ(together.robots[0].on_radio, 1);
  EXPECT_DOUBLE_EQ(together.robots[1].on_radio, 1 / 2.5);
  // A quarter of the time is available to them.
  const FleetRun busy = simulate_fleet(robots, Candidates{kOffload, kOffload}, {0.25, 1, 0}, {0, 1});
  EXPECT_DOUBLE_EQ(busy.robots[1].mean, 4);
  EXPECT_DOUBLE_EQ(busy.robots[0].mean, 10);
  // A robot that stays local neither waits nor makes others wait.
  const FleetRun apart = simulate_fleet(robots, Candidates{kOffload, kLocal}, {}, {0, 1});
  EXPECT_DOUBLE_EQ(apart.robots[0].mean, 2);
  EXPECT_DOUBLE_EQ(apart.robots[1].mean, 9);
}

TEST(Fleet, TheDirectionsOfAFullDuplexRadioAreApart) {
  OperatorGraph graph;
  graph.operators = {test::input_of(1, 100), {"op", 1, 100, {9, 0}, {0, 0}, {{0, {}}}}};
  graph.outputs = {1};
  FleetRobot robot;
  robot.graph = std::make_shared<const OperatorGraph>(graph);
  robot.candidates = {plan_of_shares(everything_on(Side::kServer, graph))};
  robot.link = {100, 100, 0, false};
  FleetRobot later = robot;
  later.first = 1;
  // The answer of the first and the input of the second are in transit at the same time.
  const FleetRun full = simulate_fleet(std::vector{robot, later}, Candidates{0, 0}, {}, {0, 1});
  EXPECT_DOUBLE_EQ(full.robots[0].mean, 2);
  EXPECT_DOUBLE_EQ(full.robots[1].mean, 2);
  robot.link.is_half_duplex = later.link.is_half_duplex = true;
  const FleetRun half = simulate_fleet(std::vector{robot, later}, Candidates{0, 0}, {}, {0, 1});
  EXPECT_DOUBLE_EQ(half.robots[0].mean, 3);
  EXPECT_DOUBLE_EQ(half.robots[1].mean, 3);
}

TEST(Fleet, TheServerComputesInTurns) {
  const std::vector<FleetRobot> robots(3, simple_robot(9, 2, 0, plain_link()));
  const Candidates all(3, kOffload);
  const FleetRun one = simulate_fleet(robots, all, {1, 1, 0}, {0, 1});
  EXPECT_DOUBLE_EQ(one.robots[0].mean, 2);
  EXPECT_DOUBLE_EQ(one.robots[1].mean, 4);
  EXPECT_DOUBLE_EQ(one.robots[2].mean, 6);
  EXPECT_DOUBLE_EQ(one.robots[2].turn_wait, 4);
  EXPECT_DOUBLE_EQ(one.robots[2].before_server, 4.0 / 6);
  EXPECT_DOUBLE_EQ(one.robots[2].on_server, 2.0 / 6);
  const FleetRun two = simulate_fleet(robots, all, {1, 2, 0}, {0, 1});
  EXPECT_DOUBLE_EQ(two.robots[1].mean, 2);
  EXPECT_DOUBLE_EQ(two.robots[2].mean, 4);
  // Frame after frame every robot waits for the two others.
  const FleetRun often = simulate_fleet(robots, all, {1, 1, 0}, {0, 50});
  EXPECT_NEAR(often.robots[0].mean, 6, 0.1);
  EXPECT_EQ(often.robots[0].turns, 50);
}

// The server computes a second, waits a second for rows of the robot, and computes another second.
FleetRobot pausing_robot() {
  OperatorGraph graph;
  graph.operators = {test::input_of(1, 0),
                     {"first", 1, 0, {9, 0}, {1, 0}, {{0, {}}}},
                     {"robot's", 1, 0, {2, 0}, {9, 0}, {{0, {}}}},
                     {"second", 1, 0, {9, 0}, {1, 0}, {{1, {}}, {2, {}}}}};
  graph.outputs = {3};
  const Region all{0, 1};
  FleetRobot robot;
  robot.candidates = {plan_of_shares({{all, {}}, {{}, all}, {all, {}}, {{}, all}})};
  robot.graph = std::make_shared<const OperatorGraph>(graph);
  robot.link = plain_link();
  return robot;
}

TEST(Fleet, ATurnIsGivenUpWhileRowsAreAwaited) {
  const std::vector<FleetRobot> robots{pausing_robot(), simple_robot(9, 1, 0, plain_link())};
  // [0, 1) the first, [1, 2) the second, [2, 3) the first again.
  const FleetRun given = simulate_fleet(robots, Candidates{0, kOffload}, {1, 1, 0.25}, {0, 1});
  EXPECT_DOUBLE_EQ(given.robots[0].turn_wait, 0.25);  // the second began when the turn was given up
  EXPECT_DOUBLE_EQ(given.robots[1].mean, 2.25);
  EXPECT_DOUBLE_EQ(given.robots[0].mean, 3.25);
  EXPECT_EQ(given.robots[0].turns, 2);
  // With enough patience the turn is still held when the rows arrive.
  const FleetRun kept = simulate_fleet(robots, Candidates{0, kOffload}, {1, 1, 1.5}, {0, 1});
  EXPECT_DOUBLE_EQ(kept.robots[0].mean, 3);
  EXPECT_DOUBLE_EQ(kept.robots[1].mean, 4);
  EXPECT_EQ(kept.robots[0].turns, 1);
}

TEST(Fleet, AFrameThatComesTooEarlyWaits) {
  FleetRobot robot = simple_robot(2, 0, 0, plain_link());
  robot.period = 1.5;
  const RobotUse use = simulate_fleet(std::vector{robot}, Candidates{kLocal}, {}, {0, 4}).robots[0];
  EXPECT_DOUBLE_EQ(use.mean, 2 + (0 + 0.5 + 1 + 1.5) / 4);
  EXPECT_DOUBLE_EQ(use.frame_wait, 0.75);
  EXPECT_DOUBLE_EQ(use.p95, 3.5);
  robot.period = 3;
  robot.first = 1;
  const FleetRun rested = simulate_fleet(std::vector{robot}, Candidates{kLocal}, {}, {9.5, 0});
  EXPECT_EQ(rested.robots[0].frames, 3);  // at 1, 4 and 7
  EXPECT_DOUBLE_EQ(rested.robots[0].mean, 2);
  EXPECT_DOUBLE_EQ(rested.seconds, 9);
  robot.first = 20;
  EXPECT_EQ(simulate_fleet(std::vector{robot}, Candidates{kLocal}, {}, {9.5, 0}).robots[0].frames, 0);
}

TEST(Fleet, NothingIsUsedBeyondItsCapacity) {
  Dice dice(202);
  int crowded = 0;
  for (int i = 0; i < 300; ++i) {
    const auto robots = any_fleet(dice, dice.integer(1, 5), 4);
    const Shared shared{dice.chance(0.5) ? 1 : dice.real(0.3, 1), static_cast<int>(dice.integer(1, 2)),
                        dice.chance(0.5) ? 0 : dice.real(0, 1)};
    const FleetSimulator fleet(robots, shared);
    Candidates choice;
    for (std::size_t k = 0; k < robots.size(); ++k) choice.push_back(static_cast<std::size_t>(dice.integer(0, 3)));
    const FleetRun run = fleet.run(choice, {60, 0});
    double computing = 0;
    double airtime = 0;
    for (std::size_t k = 0; k < robots.size(); ++k) {
      const RobotUse& use = run.robots[k];
      const OperatorPlan& plan = fleet.candidate(k, choice[k]);
      const LinkCost& link = robots[k].link;
      computing += use.on_server;
      const double up = plan.up_bytes / link.up_bytes_per_second;
      const double down = link.is_half_duplex ? plan.down_bytes / link.down_bytes_per_second : 0;
      airtime += use.frames * (up + down) / run.seconds;
      ASSERT_GT(use.frames, 0);
      ASSERT_GE(use.p95, 0.0);
      // Never faster than its own machines and messages allow.
      ASSERT_GE(use.mean + 1e-9, std::max({plan.robot_busy, plan.server_busy, up + down})) << i;
      ASSERT_NEAR(use.on_server * run.seconds, use.frames * plan.server_busy, 1e-6 * (1 + run.seconds));
      ASSERT_GE(use.radio_wait, -1e-9);
      if (use.turn_wait > 0 && use.radio_wait > 0) ++crowded;
    }
    ASSERT_LE(computing, shared.turns + 1e-9) << i;
    ASSERT_LE(airtime, shared.airtime + 1e-9) << i;
    // Deterministic, and the order of equal robots matters only for turns.
    const FleetRun again = fleet.run(choice, {60, 0});
    for (std::size_t k = 0; k < robots.size(); ++k) ASSERT_EQ(again.robots[k].mean, run.robots[k].mean);
  }
  EXPECT_GT(crowded, 100);
}

TEST(Fleet, NamesWhatIsWrong) {
  const FleetRobot good = simple_robot(1, 1, 10, plain_link());
  const auto message = [](std::vector<FleetRobot> robots, const Candidates& choice, const Shared& shared = {},
                          const FleetSpan& span = {0, 1}) {
    return refusal([&] { simulate_fleet(robots, choice, shared, span); });
  };
  const auto expect = [](const std::string& part, const std::string& whole) {
    EXPECT_NE(whole.find(part), std::string::npos) << whole;
  };
  EXPECT_EQ(message({good}, {0}), "");
  expect("airtime is 0", message({good}, {0}, {0, 1, 0}));
  expect("airtime is 1.5", message({good}, {0}, {1.5, 1, 0}));
  expect("0 turns at once", message({good}, {0}, {1, 0, 0}));
  expect("patience is -1", message({good}, {0}, {1, 1, -1}));
  expect("2 choices for 1 robot", message({good}, {0, 0}));
  expect("robot 0 has 2 candidates, but number 2", message({good}, {2}));
  expect("no end", message({good}, {0}, {}, {0, 0}));
  FleetRobot bad = good;
  bad.graph = nullptr;
  expect("robot 1 has no graph", message({good, bad}, {0, 0}));
  bad = good;
  bad.candidates.clear();
  expect("robot 0 has no candidates", message({bad}, {0}));
  bad = good;
  bad.period = -1;
  expect("robot 0's period is -1", message({bad}, {0}));
  bad = good;
  bad.link.is_half_duplex = false;
  expect("robot 1's link is full duplex", message({good, bad}, {0, 0}));
  expect("takes no time for an inference", message({simple_robot(0, 0, 0, plain_link())}, {0}, {}, {5, 0}));
}

}  // namespace
}  // namespace atl::plan::fleet
