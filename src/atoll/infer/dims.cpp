// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/dims.h"

#include <algorithm>
#include <string>

#include "atoll/infer/regions.h"
#include "atoll/plan/text.h"

namespace atl::infer {
namespace {

int dim_of(const std::vector<int>& dims, int tensor) { return dims[static_cast<std::size_t>(tensor)]; }

// Returns whether rows of the output can be computed from rows of all split operands: each is followed along its own
// dimension or needed whole.
bool agrees(const NodeSplit& split, const std::vector<int>& dims) {
  if (split.locality == Locality::kPartial) return false;
  return std::all_of(split.operands.begin(), split.operands.end(), [&](const OperandSplit& operand) {
    const int dim = dim_of(dims, operand.tensor);
    return dim < 0 || operand.dim < 0 || operand.dim == dim;
  });
}

// The dimension of the output that the rows of some split operand lead to; -1: none. Tries each dimension only once,
// because a node may have very many operands.
int follow_rows(const Graph& graph, const Node& node, const std::vector<int>& dims) {
  if (node.outputs.empty()) return -1;
  const NodeView view(graph, node);
  const auto rank = static_cast<std::size_t>(view.output_rank());
  std::vector<std::optional<NodeSplit>> found(rank);
  std::vector<bool> looked(rank, false);
  const auto along = [&](int output_dim) -> const std::optional<NodeSplit>& {
    const auto place = static_cast<std::size_t>(output_dim);
    if (!looked[place]) {
      looked[place] = true;
      if (view.output_rows(output_dim) > 1) found[place] = split(graph, node, output_dim);  // one row cannot be divided
      if (found[place] && !agrees(*found[place], dims)) found[place].reset();
    }
    return found[place];
  };
  for (std::size_t leader = 0; leader < view.operands(); ++leader) {
    if (dim_of(dims, view.tensor_of(leader)) < 0) continue;
    for (int output_dim = 0; output_dim < view.output_rank(); ++output_dim) {
      const std::optional<NodeSplit>& way = along(output_dim);
      if (way && way->operands[leader].dim >= 0) return output_dim;
    }
  }
  return -1;
}

// As partial_of, for a node that is not computed by rows.
std::optional<Partial> follow_sums(const Graph& graph, const Node& node, const std::vector<int>& dims) {
  if (node.outputs.empty() || node.is_list) return std::nullopt;
  const NodeView view(graph, node);
  for (std::size_t i = 0; i < view.operands(); ++i) {
    const int dim = dim_of(dims, view.tensor_of(i));
    if (dim < 0) continue;
    if (auto found = partial(graph, node, i, dim)) return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> choose_dims(const Graph& graph, int input_tensor, int dim) {
  if (std::find(graph.inputs.begin(), graph.inputs.end(), input_tensor) == graph.inputs.end()) {
    plan::refuse("tensor " + std::to_string(input_tensor) + " is not an input of the graph");
  }
  const Shape& shape = graph.tensors.at(static_cast<std::size_t>(input_tensor)).shape;
  if (dim < 0 || static_cast<std::size_t>(dim) >= shape.size()) {
    plan::refuse("input tensor " + std::to_string(input_tensor) + " has " + std::to_string(shape.size()) +
                 " dimensions, not dimension " + std::to_string(dim));
  }
  std::vector<int> dims(graph.tensors.size(), -1);
  dims[static_cast<std::size_t>(input_tensor)] = dim;
  for (const Node& node : graph.nodes) {
    int found = follow_rows(graph, node, dims);
    if (found < 0) {
      const auto sums = follow_sums(graph, node, dims);
      if (sums) found = sums->output_dim;
    }
    if (found < 0) continue;
    const std::int64_t rows = NodeView(graph, node).output_rows(found);
    const auto place = static_cast<std::size_t>(found);
    for (const int output : node.outputs) {
      const Shape& sizes = graph.tensors.at(static_cast<std::size_t>(output)).shape;
      if (place < sizes.size() && sizes[place] == rows) dims[static_cast<std::size_t>(output)] = found;
    }
  }
  return dims;
}

std::optional<Partial> partial_of(const Graph& graph, const Node& node, const std::vector<int>& dims) {
  if (follow_rows(graph, node, dims) >= 0) return std::nullopt;
  return follow_sums(graph, node, dims);
}

Localities count(const Graph& graph, const std::vector<int>& dims) {
  if (dims.size() != graph.tensors.size()) {
    plan::refuse(std::to_string(dims.size()) + " dimensions were given for " + std::to_string(graph.tensors.size()) +
                 " tensors: give one for each");
  }
  std::vector<bool> depends(graph.tensors.size(), false);  // on an input
  for (const int input : graph.inputs) depends[static_cast<std::size_t>(input)] = true;
  Localities counts;
  for (const Node& node : graph.nodes) {
    const std::vector<int> operands = operands_of(node);
    const bool follows =
        std::any_of(operands.begin(), operands.end(), [&](int id) { return depends[static_cast<std::size_t>(id)]; });
    for (const int output : node.outputs) depends[static_cast<std::size_t>(output)] = follows;
    if (!follows) {
      ++counts.constant;
    } else if (partial_of(graph, node, dims)) {
      ++counts.partial;
    } else {
      ++(!node.outputs.empty() && dim_of(dims, node.outputs.front()) >= 0 ? counts.local : counts.global);
    }
  }
  return counts;
}

}  // namespace atl::infer
