// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/operators.h"

#include <algorithm>

#include "atoll/infer/dims.h"
#include "atoll/infer/regions.h"
#include "atoll/plan/numbers.h"

namespace atl::infer {
namespace {

using plan::as_index;

// By tensor: whether a node takes it or the caller gets it.
std::vector<bool> used_tensors(const Graph& graph) {
  std::vector<bool> used(graph.tensors.size(), false);
  for (const Node& node : graph.nodes) {
    for (const int tensor : infer::operands_of(node)) used[as_index(tensor)] = true;
  }
  for (const int tensor : outputs_of(graph)) used[as_index(tensor)] = true;
  return used;
}

class Finding {
 public:
  Finding(const Graph& graph, int input_tensor, int dim) : graph_(graph), used_(used_tensors(graph)) {
    const bool divides = input_tensor != -1 || dim != -1;
    found_.dims = divides ? choose_dims(graph, input_tensor, dim) : std::vector<int>(graph.tensors.size(), -1);
    found_.operator_of.assign(graph.tensors.size(), -1);
  }

  Operators all() {
    for (const int input : graph_.inputs) add(-1, {input});
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) take(static_cast<int>(i));
    return std::move(found_);
  }

 private:
  void take(int index) {
    const Node& node = graph_.nodes[as_index(index)];
    const std::vector<int> operands = infer::operands_of(node);
    std::vector<int> makes;
    for (const int output : node.outputs) {
      if (used_[as_index(output)]) makes.push_back(output);
    }
    const bool is_constant = std::all_of(operands.begin(), operands.end(),
                                         [&](int tensor) { return found_.operator_of[as_index(tensor)] < 0; });
    if (!is_constant) {
      const bool has_states = !makes.empty() && try_states(index);
      add(index, std::move(makes));
      if (has_states) be_result();
    } else if (!makes.empty()) {
      found_.constants.push_back(index);
    }
  }

  // Adds the operator that makes the node's states, if the node needs sums. If its operands are not divided as
  // choose_dims assumed and it cannot be computed by rows, it stays whole.
  bool try_states(int index) {
    const Node& node = graph_.nodes[as_index(index)];
    int& dim = found_.dims[as_index(node.outputs.front())];
    auto partial = partial_of(graph_, node, found_.dims);
    const bool has_number = found_.dims.size() < kMaxTensors;  // one that frames can have
    if (partial && partial->output_dim == dim && has_number) {
      const int tensor = static_cast<int>(found_.dims.size());
      const int place = static_cast<int>(found_.operators.size());
      found_.operators.push_back(
          {index, {tensor}, partial->rows, Operators::Part::kState, static_cast<int>(found_.states.size())});
      found_.dims.push_back(0);
      found_.operator_of.push_back(place);
      found_.states.push_back({tensor, index, std::move(*partial)});
      return true;
    }
    if (dim >= 0) {
      const auto local = split(graph_, node, dim);
      if (!local || local->locality == Locality::kPartial) dim = -1;
    }
    return false;
  }

  void be_result() {
    found_.operators.back().part = Operators::Part::kResult;
    found_.operators.back().state = static_cast<int>(found_.states.size()) - 1;
  }

  // Counts rows only if all tensors that the operator makes have equally many.
  void add(int index, std::vector<int> makes) {
    const std::vector<int>& outputs = index < 0 ? makes : graph_.nodes[as_index(index)].outputs;
    const int place = static_cast<int>(found_.operators.size());
    for (const int output : outputs) found_.operator_of[as_index(output)] = place;
    const int dim = outputs.empty() ? -1 : found_.dims[as_index(outputs.front())];
    const std::int64_t rows = makes.empty() ? 1 : rows_of(makes.front(), dim);
    const bool is_divided = rows > 1 && std::all_of(makes.begin(), makes.end(), [&](int tensor) {
                              return found_.dims[as_index(tensor)] == dim && rows_of(tensor, dim) == rows;
                            });
    if (!is_divided) {
      for (const int output : outputs) found_.dims[as_index(output)] = -1;
    }
    found_.operators.push_back({index, std::move(makes), is_divided ? rows : 1, Operators::Part::kNode, -1});
  }

  std::int64_t rows_of(int tensor, int dim) const {
    const Shape& shape = graph_.tensors[as_index(tensor)].shape;
    return dim < 0 || as_index(dim) >= shape.size() ? 1 : shape[as_index(dim)];
  }

  const Graph& graph_;
  std::vector<bool> used_;
  Operators found_;
};

}  // namespace

std::vector<int> outputs_of(const Graph& graph) {
  std::vector<int> outputs;
  for (const Argument& output : graph.outputs) {
    const auto* tensor = std::get_if<TensorId>(&output);
    if (tensor == nullptr) continue;
    if (std::find(outputs.begin(), outputs.end(), tensor->id) == outputs.end()) outputs.push_back(tensor->id);
  }
  return outputs;
}

Operators operators_of(const Graph& graph, int input_tensor, int dim) {
  return Finding(graph, input_tensor, dim).all();
}

std::vector<int> taken_by(const Graph& graph, const Operators& operators, int index) {
  const Operators::Operator& each = operators.operators[as_index(index)];
  if (each.node < 0) return {};
  const std::vector<int> operands = infer::operands_of(graph.nodes[as_index(each.node)]);
  std::vector<int> taken;
  if (each.part == Operators::Part::kNode) {
    taken = operands;
  } else {
    const Operators::State& state = operators.states[as_index(each.state)];
    const bool makes_state = each.part == Operators::Part::kState;
    for (const Partial::Taken& of : makes_state ? state.partial.of_state : state.partial.of_result) {
      taken.push_back(operands[of.operand]);
    }
    if (!makes_state) taken.push_back(state.tensor);
  }
  std::erase_if(taken, [&](int tensor) { return operators.operator_of[as_index(tensor)] < 0; });
  return taken;
}

std::vector<std::vector<int>> taken_by_all(const Graph& graph, const Operators& operators) {
  std::vector<std::vector<int>> taken;
  for (std::size_t i = 0; i < operators.operators.size(); ++i) {
    taken.push_back(taken_by(graph, operators, static_cast<int>(i)));
  }
  return taken;
}

Region rows_of(const Graph& graph, const Operators& operators, int tensor) {
  if (as_index(tensor) >= graph.tensors.size())
    return {0, operators.operators[as_index(operators.operator_of[as_index(tensor)])].rows};
  const int dim = operators.dims[as_index(tensor)];
  return {0, dim < 0 ? 1 : graph.tensors[as_index(tensor)].shape[as_index(dim)]};
}

Tensor type_of_rows(const Graph& graph, const Operators& operators, int tensor, Region rows) {
  if (as_index(tensor) >= graph.tensors.size())
    return operators.states.at(as_index(tensor) - graph.tensors.size()).partial.state;
  Tensor type = graph.tensors[as_index(tensor)];
  const int dim = operators.dims.at(as_index(tensor));
  if (dim >= 0) type.shape.at(as_index(dim)) = rows.size();
  return type;
}

}  // namespace atl::infer
