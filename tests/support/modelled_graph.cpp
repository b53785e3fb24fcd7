// SPDX-License-Identifier: Apache-2.0
#include "tests/support/modelled_graph.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "atoll/infer/regions.h"
#include "atoll/infer/run/operators.h"

namespace atl::infer::test {
namespace {

const Floats& costs_of(const Node& node) { return std::get<Floats>(node.args.at(kCosts)); }

std::optional<NodeSplit> split_layer(const NodeView& view, int output_dim) {
  if (output_dim != 0) return std::nullopt;
  const Ints by_rows = view.integers(kByRows);
  NodeSplit split;
  split.locality = Locality::kBlock;
  for (std::size_t i = 0; i < view.operands(); ++i) {
    OperandSplit operand;
    operand.tensor = view.tensor_of(i);
    if (by_rows.at(i) != 0) {
      operand.dim = 0;
      operand.map = maps::Scale{view.rows(i, 0), view.output_rows(0)};
    }
    split.operands.push_back(operand);
  }
  return split;
}

SlicedCall slice_layer(const NodeView& view, const NodeSplit& split, int, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  call.changes.push_back({kRows, Ints{rows.begin, rows.end}});
  return call;
}

}  // namespace

Graph modelled_graph(const plan::OperatorGraph& operators) {
  Graph graph;
  for (const plan::Operator& each : operators.operators) {
    const int tensor = static_cast<int>(graph.tensors.size());
    const std::int64_t row_bytes = (std::max<std::int64_t>(each.bytes, 1) + each.rows - 1) / each.rows;
    graph.tensors.push_back({Dtype::kUint8, {each.rows, row_bytes}});
    if (each.operands.empty()) {
      graph.inputs.push_back(tensor);
      continue;
    }
    TensorIds ids;
    Ints by_rows;
    for (const plan::Operand& operand : each.operands) {
      ids.ids.emplace_back(operand.producer);
      by_rows.push_back(operand.needed ? 1 : 0);
    }
    Node node;
    node.op = kLayer;
    node.args = {std::move(ids), std::move(by_rows),
                 Floats{each.robot.fixed, each.robot.per_row, each.server.fixed, each.server.per_row},
                 Ints{0, each.rows}};
    node.outputs = {tensor};
    graph.nodes.push_back(std::move(node));
  }
  for (const int output : operators.outputs) graph.outputs.emplace_back(TensorId{output});
  check(graph);
  return graph;
}

Profile modelled_profile(const Graph& graph, Machine machine) {
  const std::size_t first = machine == Machine::kRobot ? 0 : 2;
  Profile profile;
  profile.device = machine == Machine::kRobot ? "robot" : "server";
  profile.input_tensor = graph.inputs.front();
  profile.dim = 0;
  register_layer_rule();
  const Operators operators = operators_of(graph, profile.input_tensor, profile.dim);
  for (const Node& node : graph.nodes) {
    const auto tensor = static_cast<std::size_t>(node.outputs.front());
    const plan::RowCost cost{costs_of(node).at(first), costs_of(node).at(first + 1)};
    const double whole = cost.seconds(graph.tensors.at(tensor).shape.front());
    const bool is_divided = operators.dims.at(tensor) >= 0;
    profile.fixed.push_back(is_divided ? cost.fixed : whole);
    profile.per_row.push_back(is_divided ? cost.per_row : 0);
    profile.whole.push_back(whole);
  }
  return profile;
}

void register_layer_rule() {
  static std::once_flag once;
  std::call_once(once, [] {
    Rule rule;
    rule.split = split_layer;
    rule.slice = slice_layer;
    register_rule(kLayer, rule);
  });
}

}  // namespace atl::infer::test
