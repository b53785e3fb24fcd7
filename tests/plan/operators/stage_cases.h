// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/region_search.h"
#include "atoll/plan/operators/stages.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan::test {

inline constexpr RobotPower kPower{};

/// A link so fast that it hardly matters.
inline constexpr LinkCost kFastLink{1e9, 1e9, 1e-6, false};

/// A search that leaves nothing out, over shares in `parts`.
inline SearchOptions exact(int parts) {
  SearchOptions options;
  options.grids = {parts};
  options.epsilon = 0;
  options.margin = 0;
  options.least_gap = 0;
  options.seconds = 1000;
  options.chunks = 1;
  return options;
}

inline Operand whole(int producer) { return {producer, nullptr}; }

inline Operand same(int producer) {
  return {producer, [](Region rows) { return rows; }};
}

/// The operand of a convolution or a pooling over `rows` rows.
inline Operand window(int producer, std::int64_t rows, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return {producer, [=](Region made) -> Region {
            if (made.is_empty()) return {};
            return intersection({made.begin * stride - padding, (made.end - 1) * stride - padding + kernel}, {0, rows});
          }};
}

/// A share of the rows needs the same share of the operand's, and `halo` rows on either side.
inline Operand scaled(int producer, std::int64_t from, std::int64_t to, std::int64_t halo) {
  return {producer, [=](Region made) -> Region {
            if (made.is_empty()) return {};
            return intersection({made.begin * from / to - halo, (made.end * from + to - 1) / to + halo}, {0, from});
          }};
}

/// Builds a model. Costs are of whole operators, in seconds.
struct Model {
  OperatorGraph graph;

  int input(std::int64_t rows, std::int64_t bytes) {
    graph.operators.push_back({"input", rows, bytes, {}, {}, {}});
    return last();
  }
  int add(std::int64_t rows, std::int64_t bytes, double robot, double server, std::vector<Operand> operands,
          double fixed = 0) {
    const auto cost = [&](double seconds) {
      return RowCost{seconds * fixed, seconds * (1 - fixed) / static_cast<double>(rows)};
    };
    graph.operators.push_back(
        {"operator " + std::to_string(last() + 1), rows, bytes, cost(robot), cost(server), std::move(operands)});
    return last();
  }
  std::int64_t rows(int index) const { return operator_at(graph, index).rows; }
  int last() const { return static_cast<int>(graph.operators.size()) - 1; }
};

/// Returns single operators in a row: convolutions, poolings, element by element, strides that skip rows, sometimes a
/// global tail.
inline OperatorGraph any_chain(Dice& dice, std::int64_t most_rows, int operators) {
  Model model;
  int at = model.input(dice.integer(1, most_rows), dice.integer(1, 100));
  for (int i = 0; i < operators; ++i) {
    const std::int64_t rows = model.rows(at);
    const std::int64_t bytes = dice.chance(0.1) ? 0 : dice.integer(1, 100);
    const double robot = dice.chance(0.1) ? 0 : dice.real(0, 10);
    const double server = dice.chance(0.1) ? 0 : dice.real(0, 10);
    const double fixed = dice.chance(0.5) ? 0 : dice.real(0, 0.5);
    const std::int64_t kind = rows < 2 ? 4 : rows < 4 ? dice.integer(0, 2) : dice.integer(0, 4);
    std::int64_t made = rows;
    Operand operand = whole(at);
    if (kind == 0) operand = same(at);
    if (kind == 1) operand = window(at, rows, 3, 1, 1);
    if (kind == 2) operand = window(at, rows, 5, 1, 2);
    if (kind == 3) {
      const bool is_pool = dice.chance(0.5);
      made = is_pool ? rows / 2 : (rows + 1) / 2;
      operand = is_pool ? window(at, rows, 2, 2, 0) : window(at, rows, 1, 2, 0);
    }
    if (kind == 4) made = dice.chance(0.7) ? 1 : made;
    at = model.add(made, bytes, robot, server, {operand}, fixed);
  }
  model.graph.outputs = {at};
  return std::move(model.graph);
}

/// Returns any operators with one or two operands, often the latest ones; those without consumers are outputs.
inline OperatorGraph any_graph(Dice& dice, std::int64_t most_rows, int operators) {
  Model model;
  const std::int64_t inputs = dice.chance(0.8) ? 1 : 2;
  for (std::int64_t i = 0; i < inputs; ++i) model.input(dice.integer(1, most_rows), dice.integer(1, 100));
  std::vector<bool> is_taken(static_cast<std::size_t>(inputs), false);
  for (int i = 0; i < operators; ++i) {
    const std::int64_t rows = dice.chance(0.25) ? 1 : dice.integer(2, most_rows);
    std::vector<Operand> operands;
    for (std::int64_t k = dice.integer(1, 2); k > 0; --k) {
      const int from = dice.chance(0.6) ? model.last() : static_cast<int>(dice.integer(0, model.last()));
      is_taken[static_cast<std::size_t>(from)] = true;
      const bool is_whole = rows == 1 || model.rows(from) == 1 || dice.chance(0.1);
      operands.push_back(is_whole ? whole(from) : scaled(from, model.rows(from), rows, dice.integer(0, 1)));
    }
    model.add(rows, dice.integer(0, 100), dice.real(0, 10), dice.real(0, 10), std::move(operands),
              dice.chance(0.5) ? 0 : dice.real(0, 0.5));
    is_taken.push_back(false);
  }
  for (std::size_t v = static_cast<std::size_t>(inputs); v < is_taken.size(); ++v) {
    if (!is_taken[v]) model.graph.outputs.push_back(static_cast<int>(v));
  }
  return std::move(model.graph);
}

inline LinkCost any_link(Dice& dice, bool may_be_half_duplex = true) {
  LinkCost link;
  link.up_bytes_per_second = dice.real(3, 300);
  link.down_bytes_per_second = dice.chance(0.5) ? link.up_bytes_per_second : dice.real(3, 300);
  link.latency = dice.chance(0.5) ? 0 : dice.real(0, 1);
  link.is_half_duplex = may_be_half_duplex && dice.chance(0.5);
  return link;
}

/// Returns whether every row of the operator is computed.
inline bool is_covered(const Share& share, std::int64_t rows) {
  std::vector<bool> made(static_cast<std::size_t>(rows), false);
  for (const Region& side : {share.robot, share.server}) {
    for (std::int64_t row = side.begin; row < side.end; ++row) made[static_cast<std::size_t>(row)] = true;
  }
  return std::all_of(made.begin(), made.end(), [](bool is_made) { return is_made; });
}

}  // namespace atl::plan::test
