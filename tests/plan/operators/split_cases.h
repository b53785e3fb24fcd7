// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/operators.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan::test {

inline constexpr Region kNone{};

/// [x, y) of `users` rows needs [x * times - before, (y - 1) * times + after) of `rows` rows.
inline Operand operand_of(int producer, std::int64_t rows, std::int64_t times, std::int64_t before,
                          std::int64_t after) {
  return {producer, [=](Region region) {
            return intersection({region.begin * times - before, (region.end - 1) * times + after}, {0, rows});
          }};
}

/// The same share of the operand as of the output.
inline Operand share_of(int producer, std::int64_t rows, std::int64_t users) {
  return {producer, [=](Region region) {
            return Region{region.begin * rows / users, (region.end * rows + users - 1) / users};
          }};
}

inline Operator input_of(std::int64_t rows, std::int64_t bytes) {
  Operator result;
  result.name = "input";
  result.rows = rows;
  result.bytes = bytes;
  return result;
}

inline RowCost any_cost_of_rows(Dice& dice, double most, std::int64_t rows) {
  const double seconds = dice.chance(0.1) ? 0 : dice.real(0, most);
  const double fixed = dice.chance(0.5) ? 0 : dice.real(0, seconds);
  return {fixed, (seconds - fixed) / static_cast<double>(rows)};
}

enum class RowNeeds { kProportional, kAny };

/// Returns an operator of some rows that takes operator `producer` in one of the ways that occur in models.
inline Operator any_user(Dice& dice, const OperatorGraph& graph, int producer, RowNeeds needs) {
  const std::int64_t rows = graph.operators[static_cast<std::size_t>(producer)].rows;
  Operator result;
  result.rows = rows;
  const std::int64_t way = dice.integer(0, needs == RowNeeds::kAny ? 8 : 2);
  if (rows == 1 || way == 0) {
    result.rows = dice.chance(0.5) ? 1 : dice.integer(1, 12);
    result.operands.push_back({producer, {}});
  } else if (way == 1 || rows < 4) {
    result.operands = {operand_of(producer, rows, 1, 1, 2)};
  } else if (way == 2) {
    result.rows = rows / 2;
    result.operands = {share_of(producer, rows, result.rows)};
  } else if (way == 3) {
    result.rows = rows / 2;
    result.operands = {operand_of(producer, rows, 2, 0, 2)};  // drops the last of an odd number
  } else if (way == 4) {
    result.rows = (rows + 1) / 2;
    result.operands = {operand_of(producer, rows, 2, 0, 1)};  // skips every second
  } else if (way == 5) {                                      // padding needs nothing
    const std::int64_t low = dice.integer(0, rows);
    result.rows = low + rows + dice.integer(0, rows);
    result.operands = {operand_of(producer, rows, 1, low, 1 - low)};
  } else if (way == 6) {  // a slice
    result.rows = dice.integer(2, rows - 1);
    const std::int64_t first = dice.integer(0, rows - result.rows);
    result.operands = {operand_of(producer, rows, 1, -first, 1 + first)};
  } else if (way == 7) {
    result.operands.push_back({producer, [](Region region) { return Region{0, region.end}; }});  // a prefix
  } else {
    result.operands.push_back({producer, [rows](Region region) {
                                 return Region{rows - region.end, rows - region.begin};
                               }});  // upside down
  }
  return result;
}

/// Returns inputs followed by up to `most` operators, with branches, joins, and sometimes outputs that nothing uses.
inline OperatorGraph any_graph(Dice& dice, std::int64_t most, RowNeeds needs) {
  OperatorGraph graph;
  for (std::int64_t i = dice.integer(1, 2); i > 0; --i) {
    graph.operators.push_back(input_of(dice.chance(0.1) ? 1 : dice.integer(2, 14), dice.integer(1, 1000)));
  }
  for (std::int64_t i = dice.integer(1, most); i > 0; --i) {
    const int count = static_cast<int>(graph.operators.size());
    const auto earlier = [&] { return dice.chance(0.6) ? count - 1 : static_cast<int>(dice.integer(0, count - 1)); };
    Operator next = any_user(dice, graph, earlier(), needs);
    next.name = "op";
    while (dice.chance(0.3)) {
      const int other = earlier();
      const std::int64_t rows = graph.operators[static_cast<std::size_t>(other)].rows;
      const bool is_whole = rows == 1 || next.rows == 1 || dice.chance(0.1);
      next.operands.push_back(is_whole ? Operand{other, {}} : share_of(other, rows, next.rows));
    }
    if (next.rows == 1) {
      for (Operand& operand : next.operands) operand.needed = {};
    }
    next.bytes = dice.chance(0.05) ? 0 : dice.integer(1, 2000);
    next.robot = any_cost_of_rows(dice, 3, next.rows);
    next.server = any_cost_of_rows(dice, 1, next.rows);
    graph.operators.push_back(std::move(next));
  }
  const int last = static_cast<int>(graph.operators.size()) - 1;
  graph.outputs = {last};
  while (dice.chance(0.2)) graph.outputs.push_back(static_cast<int>(dice.integer(0, last)));
  return graph;
}

/// Rates over three orders of magnitude.
inline LinkCost any_wide_link(Dice& dice, bool with_latency) {
  LinkCost link;
  link.up_bytes_per_second = std::exp(dice.real(std::log(50), std::log(50'000)));
  link.down_bytes_per_second = link.up_bytes_per_second * (dice.chance(0.5) ? 1 : dice.real(0.5, 3));
  link.latency = with_latency && dice.chance(0.7) ? dice.real(0, 0.5) : 0;
  link.is_half_duplex = dice.chance(0.5);
  return link;
}

/// Any regions that together cover every operator.
inline std::vector<Share> any_shares(Dice& dice, const OperatorGraph& graph) {
  std::vector<Share> shares;
  const double bias = dice.real(0, 1);
  for (const Operator& each : graph.operators) {
    const Region all{0, each.rows};
    if (each.operands.empty()) {
      shares.push_back({all, {}});
    } else if (dice.chance(0.4)) {
      shares.push_back(dice.chance(bias) ? Share{all, {}} : Share{{}, all});
    } else {
      const std::int64_t end = dice.integer(0, each.rows);
      const std::int64_t begin = dice.chance(0.5) ? end : dice.integer(0, end);
      const Region low{0, end};
      const Region high{begin, each.rows};
      shares.push_back(dice.chance(0.5) ? Share{high, low} : Share{low, high});
    }
  }
  return shares;
}

/// Returns the same plan without rows that neither side uses.
inline std::vector<Share> trimmed(const OperatorGraph& graph, std::vector<Share> shares) {
  std::vector<Region> robot_wants(shares.size());
  std::vector<Region> server_wants(shares.size());
  const auto all_of = [&](int index) { return Region{0, graph.operators[static_cast<std::size_t>(index)].rows}; };
  for (const int output : graph.outputs) robot_wants[static_cast<std::size_t>(output)] = all_of(output);
  for (std::size_t i = shares.size(); i-- > 0;) {
    const Operator& each = graph.operators[i];
    if (each.operands.empty()) continue;
    Share& share = shares[i];
    const Region either = hull(robot_wants[i], server_wants[i]);
    const bool sends_up = !share.server.holds(server_wants[i]);
    const bool sends_down = !share.robot.holds(robot_wants[i]);
    share.robot = intersection(share.robot, sends_up ? either : robot_wants[i]);
    share.server = intersection(share.server, sends_down ? either : server_wants[i]);
    for (const Operand& operand : each.operands) {
      const auto producer = static_cast<std::size_t>(operand.producer);
      const auto want = [&](std::vector<Region>& wants, Region region) {
        if (region.is_empty()) return;
        const Region all = all_of(operand.producer);
        wants[producer] = hull(wants[producer], operand.needed ? intersection(operand.needed(region), all) : all);
      };
      want(robot_wants, share.robot);
      want(server_wants, share.server);
    }
  }
  return shares;
}

/// Returns the resources of a plan of whole operators: `sides` is 1 for the robot, 2 for the server, 3 for both. None
/// if an operand is computed nowhere.
inline std::optional<Totals> whole_totals(const OperatorGraph& graph, const std::vector<int>& sides) {
  Totals totals;
  std::vector<int> sent(sides.size(), 0);  // receiving sides
  const auto take = [&](int producer, int side) {
    const int has = sides[static_cast<std::size_t>(producer)];
    if ((has & side) == 0) sent[static_cast<std::size_t>(producer)] |= side;
    return has != 0;
  };
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const Operator& each = graph.operators[i];
    if ((sides[i] & 1) != 0) totals.robot_seconds += each.robot.seconds(each.rows);
    if ((sides[i] & 2) != 0) totals.server_seconds += each.server.seconds(each.rows);
    for (const Operand& operand : each.operands) {
      for (const int side : {1, 2}) {
        if ((sides[i] & side) != 0 && !take(operand.producer, side)) return std::nullopt;
      }
    }
  }
  for (const int output : graph.outputs) {
    if (!take(output, 1)) return std::nullopt;
  }
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if ((sent[i] & 2) != 0) totals.up_bytes += static_cast<double>(graph.operators[i].bytes);
    if ((sent[i] & 1) != 0) totals.down_bytes += static_cast<double>(graph.operators[i].bytes);
  }
  return totals;
}

/// Returns the sides of shares that are whole or empty; fails the test if they are not, or are not a plan.
inline Totals whole_totals(const OperatorGraph& graph, const std::vector<Share>& shares) {
  std::vector<int> sides;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Region all{0, graph.operators[i].rows};
    for (const Region region : {shares[i].robot, shares[i].server}) EXPECT_TRUE(region.is_empty() || region == all);
    sides.push_back((shares[i].robot.is_empty() ? 0 : 1) + (shares[i].server.is_empty() ? 0 : 2));
  }
  const std::optional<Totals> totals = whole_totals(graph, sides);
  EXPECT_TRUE(totals);
  return totals.value_or(Totals{});
}

/// Calls `visit` with the totals of each way to compute every operator on the robot, the server, both or none.
inline void each_layer_plan(const OperatorGraph& graph, const std::function<void(const Totals&)>& visit) {
  std::vector<int> sides(graph.operators.size(), 1);
  const std::function<void(std::size_t)> choose = [&](std::size_t index) {
    if (index == sides.size()) {
      if (const auto totals = whole_totals(graph, sides)) visit(*totals);
    } else if (graph.operators[index].operands.empty()) {
      choose(index + 1);
    } else {
      for (sides[index] = 0; sides[index] < 4; ++sides[index]) choose(index + 1);
    }
  };
  choose(0);
}

}  // namespace atl::plan::test
