// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/costs.h"

#include <algorithm>
#include <optional>
#include <string>

#include "atoll/core/error.h"
#include "atoll/infer/regions.h"
#include "atoll/infer/row_map.h"
#include "atoll/plan/numbers.h"

namespace atl::infer {
namespace {

using plan::as_index;

void check_profile(const Graph& graph, const NodeCosts& profile, const char* whose) {
  if (profile.empty() || profile.size() == graph.nodes.size()) return;
  throw Error(ErrorKind::kInvalidArgument, std::string("the ") + whose + "'s profile has " +
                                               std::to_string(profile.size()) + " nodes, but the graph has " +
                                               std::to_string(graph.nodes.size()) + ": measure this graph");
}

// The share of a node's cost that the operator bears. States bear all of it if the result is made of them alone, and
// half if the result has rows itself.
double share_of(const Operators& operators, const Operators::Operator& each) {
  if (each.part == Operators::Part::kNode) return 1;
  if (operators.states[as_index(each.state)].partial.output_dim >= 0) return 0.5;
  return each.part == Operators::Part::kState ? 1 : 0;
}

plan::RowCost cost_of(const NodeCosts& profile, const Operators& operators, const Operators::Operator& each) {
  if (profile.empty()) return {};
  const NodeCost& cost = profile[as_index(each.node)];
  const double share = share_of(operators, each);
  return {cost.fixed * share, cost.all_rows * share / static_cast<double>(each.rows)};
}

// Adds `tensor` if an operator makes it: its rows by a map, or all of it without one.
void add_operand(const Operators& operators, int tensor, const std::optional<RowMap>& rows,
                 std::vector<plan::Operand>& operands) {
  const int producer = operators.operator_of[as_index(tensor)];
  if (producer < 0) return;
  plan::Operand& operand = operands.emplace_back(plan::Operand{producer, {}});
  const std::int64_t count = operators.operators[as_index(producer)].rows;
  if (rows && count > 1) operand.needed = [map = *rows, count](Region made) { return needed(map, made, count); };
}

// The operands of a part of a node with states, in the order of taken_by.
std::vector<plan::Operand> operands_of_part(const Graph& graph, const Operators& operators,
                                            const Operators::Operator& user) {
  const std::vector<int> tensors = infer::operands_of(graph.nodes[as_index(user.node)]);
  const Operators::State& state = operators.states[as_index(user.state)];
  const bool makes_state = user.part == Operators::Part::kState;
  std::vector<plan::Operand> operands;
  for (const Partial::Taken& of : makes_state ? state.partial.of_state : state.partial.of_result) {
    const int tensor = tensors[of.operand];
    std::optional<RowMap> map;
    if (user.rows > 1 && of.dim >= 0 && operators.dims[as_index(tensor)] == of.dim) map = maps::Identity{};
    add_operand(operators, tensor, map, operands);
  }
  if (!makes_state) add_operand(operators, state.tensor, {}, operands);
  return operands;
}

// The node's operands that operators make, in order.
std::vector<plan::Operand> operands_of(const Graph& graph, const Operators& operators,
                                       const Operators::Operator& user) {
  if (user.part != Operators::Part::kNode) return operands_of_part(graph, operators, user);
  const Node& node = graph.nodes[as_index(user.node)];
  const std::vector<int> tensors = infer::operands_of(node);
  std::optional<NodeSplit> rows;
  if (user.rows > 1) rows = split(graph, node, operators.dims[as_index(node.outputs.front())]);
  std::vector<plan::Operand> operands;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::optional<RowMap> map;
    if (rows && rows->operands[i].dim >= 0) map = rows->operands[i].map;
    add_operand(operators, tensors[i], map, operands);
  }
  return operands;
}

}  // namespace

plan::OperatorGraph operator_graph(const Graph& graph, const Operators& operators, const NodeCosts& robot,
                                   const NodeCosts& server) {
  check_profile(graph, robot, "robot");
  check_profile(graph, server, "server");
  plan::OperatorGraph lowered;
  for (const Operators::Operator& each : operators.operators) {
    plan::Operator& added = lowered.operators.emplace_back();
    added.rows = each.rows;
    added.is_state = each.part == Operators::Part::kState;
    for (const int tensor : each.makes) {
      added.bytes += type_of_rows(graph, operators, tensor, rows_of(graph, operators, tensor)).bytes();
    }
    if (each.node < 0) {
      added.name = "input " + std::to_string(lowered.operators.size() - 1);
      continue;
    }
    added.name = graph.nodes[as_index(each.node)].name() + (added.is_state ? ", states" : "");
    added.robot = cost_of(robot, operators, each);
    added.server = cost_of(server, operators, each);
    added.operands = operands_of(graph, operators, each);
  }
  for (const int tensor : outputs_of(graph)) {
    const int made = operators.operator_of[as_index(tensor)];
    if (made >= 0 && std::find(lowered.outputs.begin(), lowered.outputs.end(), made) == lowered.outputs.end()) {
      lowered.outputs.push_back(made);
    }
  }
  if (lowered.outputs.empty() && !lowered.operators.empty()) lowered.outputs.push_back(0);
  return lowered;
}

}  // namespace atl::infer
