// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/chain_price.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

// Returns whether a share of the consumer's rows needs at least that share of the operand's, for the first and last
// rows.
bool is_proportional(const Operand& operand, std::int64_t made, std::int64_t rows) {
  if (!operand.needed || made == 0) return true;
  const auto is_enough = [&](std::int64_t part) {
    return operand.needed({0, part}).size() * made >= part * rows &&
           operand.needed({made - part, made}).size() * made >= part * rows;
  };
  for (std::int64_t part = 1; part < made; part += std::max<std::int64_t>(1, made / 16)) {
    if (!is_enough(part)) return false;
  }
  return is_enough(made);
}

// Returns by stage the bytes that cross the link when the operands are on one side and the exits on the other: for some
// path through, its smallest tensor.
std::vector<double> crossings(const OperatorGraph& graph, const StageChain& chain) {
  std::vector<double> width(graph.operators.size(), 0);
  for (const int input : chain.inputs) width[as_index(input)] = HUGE_VAL;
  std::vector<double> result;
  for (const Stage& stage : chain.stages) {
    for (const int v : stage.operators) {
      const Operator& made = operator_at(graph, v);
      double& widest = width[as_index(v)];
      for (const Operand& operand : made.operands) {
        const Operator& from = operator_at(graph, operand.producer);
        if (!is_proportional(operand, made.rows, from.rows)) continue;
        const double before = width[as_index(operand.producer)];
        widest = std::max(widest, std::min(before, static_cast<double>(from.bytes)));
      }
    }
    result.push_back(stage.exits.size() == 1 ? width[as_index(stage.exits.front())] : 0);
    for (const int exit : stage.exits) width[as_index(exit)] = HUGE_VAL;
  }
  return result;
}

void set_rest(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
              const std::vector<double>& crossing, Price& price) {
  const double up = price.up / link.up_bytes_per_second;
  const double down = price.down / link.down_bytes_per_second;
  const Stage& last = chain.stages.back();
  double robot = 0;
  double server = last.exits.size() == 1 ? down * exit_bytes(graph, last) : 0;
  price.rest.assign(chain.stages.size() + 1, 0);
  for (std::size_t k = chain.stages.size(); k-- > 0;) {
    double on_robot = 0;
    double on_server = 0;
    double on_either = 0;
    for (const int v : chain.stages[k].operators) {
      const Operator& made = operator_at(graph, v);
      const double by_robot = price.robot * made.robot.seconds(made.rows);
      const double by_server = price.server * made.server.seconds(made.rows);
      on_robot += by_robot;
      on_server += by_server;
      on_either += std::min(by_robot, by_server);
    }
    if (chain.stages[k].operators.size() > 1) on_robot = on_server = on_either;
    const double from_robot = std::min(on_robot + robot, up * crossing[k] + on_server + server);
    const double from_server = std::min(on_server + server, down * crossing[k] + on_robot + robot);
    robot = from_robot;
    server = from_server;
    price.rest[k] = std::min(robot, server);
  }
  price.whole = robot;
}

}  // namespace

std::vector<Price> prices_of(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
                             const FluidBound& bound) {
  constexpr int kSteps = 4;
  constexpr std::size_t kMax = 4;
  std::vector<Price> prices(1);
  prices[0] = {bound.robot, bound.server, bound.up, bound.down};
  for (int robot = 0; robot <= kSteps; ++robot) {
    for (int server = 0; robot + server <= kSteps; ++server) {
      const int rest = kSteps - robot - server;
      for (int up = link.is_half_duplex ? rest : 0; up <= rest; ++up) {
        const int down = link.is_half_duplex ? up : rest - up;
        prices.push_back({robot / double{kSteps}, server / double{kSteps}, up / double{kSteps}, down / double{kSteps}});
      }
    }
  }
  if (chain.stages.empty()) return {};
  const std::vector<double> crossing = crossings(graph, chain);
  for (Price& price : prices) set_rest(graph, chain, link, crossing, price);
  std::stable_sort(prices.begin(), prices.end(), [](const Price& a, const Price& b) { return a.whole > b.whole; });
  prices.resize(std::min(prices.size(), kMax));
  return prices;
}

}  // namespace atl::plan
