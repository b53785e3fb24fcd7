// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "atoll/plan/operators/timeline.h"
#include "bench/fleet/fleet.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan::test {

inline constexpr LinkCost kSharedLink{100, 100, 0, true};

inline OperatorPlan plan_of_shares(std::vector<Share> shares, int chunks = 1) {
  OperatorPlan plan;
  plan.policy = "any";
  plan.shares = std::move(shares);
  plan.chunks = chunks;
  return plan;
}

/// One operator after an input of `bytes`, with a result of none: computed on the robot, or on the server.
inline fleet::FleetRobot simple_robot(double robot_seconds, double server_seconds, std::int64_t bytes,
                                      const LinkCost& link) {
  OperatorGraph graph;
  graph.operators = {input_of(1, bytes), {"op", 1, 0, {robot_seconds, 0}, {server_seconds, 0}, {{0, {}}}}};
  graph.outputs = {1};
  fleet::FleetRobot robot;
  robot.candidates = {plan_of_shares(everything_on(Side::kRobot, graph)),
                      plan_of_shares(everything_on(Side::kServer, graph))};
  robot.graph = std::make_shared<const OperatorGraph>(std::move(graph));
  robot.link = link;
  return robot;
}

/// Robots with any graphs and a few plans each, the first one local.
inline std::vector<fleet::FleetRobot> any_fleet(Dice& dice, std::int64_t robots, std::int64_t plans) {
  std::vector<fleet::FleetRobot> fleet;
  const bool is_half_duplex = dice.chance(0.5);
  const bool are_equal = dice.chance(0.3);
  while (static_cast<std::int64_t>(fleet.size()) < robots) {
    if (are_equal && !fleet.empty()) {
      fleet.push_back(fleet.front());
      continue;
    }
    fleet::FleetRobot robot;
    OperatorGraph graph = any_graph(dice, 8, RowNeeds::kAny);
    graph.operators.back().robot.fixed += 0.1;  // every plan takes some time
    graph.operators.back().server.fixed += 0.1;
    robot.link = any_wide_link(dice, true);
    robot.link.is_half_duplex = is_half_duplex;
    robot.period = dice.chance(0.5) ? 0 : dice.real(0.5, 12);
    robot.first = dice.chance(0.5) ? 0 : dice.real(0, 5);
    robot.candidates = {plan_of_shares(everything_on(Side::kRobot, graph)),
                        plan_of_shares(everything_on(Side::kServer, graph))};
    while (static_cast<std::int64_t>(robot.candidates.size()) < plans) {
      robot.candidates.push_back(
          plan_of_shares(trimmed(graph, any_shares(dice, graph)), static_cast<int>(dice.integer(1, 4))));
    }
    robot.candidates.resize(static_cast<std::size_t>(plans));
    robot.graph = std::make_shared<const OperatorGraph>(std::move(graph));
    fleet.push_back(std::move(robot));
  }
  return fleet;
}

}  // namespace atl::plan::test
