// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/worker/step_admission.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/regions.h"
#include "atoll/plan/numbers.h"

namespace atl::infer {
namespace {

using plan::as_index;

// Null if the node has none.
const Operators::State* state_of_node(const Graph& graph, const Operators& operators, int node) {
  const int output = graph.nodes.at(as_index(node)).outputs.front();
  const int made_by = operators.operator_of.at(as_index(output));
  const int state = operators.operators.at(as_index(made_by)).state;
  return state < 0 ? nullptr : &operators.states.at(as_index(state));
}

void admit_rows(const Graph& graph, const Operators& operators, const Step& step, const safety::Limits& limits) {
  const Node& node = graph.nodes.at(as_index(step.index));
  if (node.outputs.empty()) return;  // no call is made
  const int dim = operators.dims.at(as_index(node.outputs.front()));
  if (dim < 0 || state_of_node(graph, operators, step.index) != nullptr) return;  // the whole node, which was admitted
  const SlicedCall call = slice(graph, node, dim, step.rows);
  std::vector<Tensor> operands;
  for (const OperandSlice& operand : call.operands) {
    operands.push_back(type_of_rows(graph.tensors.at(as_index(operand.tensor)), operand.dim, operand.rows));
  }
  for (const Pad& pad : call.pads) operands.at(pad.operand).shape.at(as_index(pad.dim)) += pad.low + pad.high;
  safety::admit_call(graph, node, operands, call.changes, limits);
}

}  // namespace

void admit_program(const Graph& graph, const Operators& operators, const Program& program,
                   const safety::Limits& limits) {
  std::map<int, std::int64_t> parts;  // by tensor: number of states that are made or received
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::kState) ++parts[state_of_node(graph, operators, step.index)->tensor];
    if (step.kind == Step::Kind::kReceive && as_index(step.index) >= graph.tensors.size()) ++parts[step.index];
  }
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::kCompute) admit_rows(graph, operators, step, limits);
    if (step.kind != Step::Kind::kState && step.kind != Step::Kind::kResult) continue;
    const Operators::State& state = *state_of_node(graph, operators, step.index);
    if (step.kind == Step::Kind::kState) {
      safety::admit(state.partial.state_calls(step.rows.size()), limits);
    } else {
      safety::admit(state.partial.result_calls(parts[state.tensor], step.rows.size()), limits);
    }
  }
}

Program measured_parts(const Operators& operators) {
  Program program;
  for (const Operators::Operator& each : operators.operators) {
    if (each.node < 0 || each.part == Operators::Part::kState) continue;
    if (each.part == Operators::Part::kResult) {
      const std::int64_t rows = operators.states.at(as_index(each.state)).partial.rows;
      program.steps.push_back({Step::Kind::kState, each.node, {0, rows / 2}});
      program.steps.push_back({Step::Kind::kState, each.node, {rows / 2, rows}});
      program.steps.push_back({Step::Kind::kResult, each.node, {0, std::max<std::int64_t>(1, each.rows / 2)}});
    } else if (each.rows > 1) {
      program.steps.push_back({Step::Kind::kCompute, each.node, {0, each.rows / 2}});
    }
  }
  return program;
}

}  // namespace atl::infer
