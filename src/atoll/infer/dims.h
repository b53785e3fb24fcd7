// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

namespace atl::infer {

/// Chooses, for each tensor of `graph`, the dimension along which its rows can be computed in parts when input tensor
/// `input_tensor` is split along `dim`: -1 for tensors that are not split, because they depend on other inputs or
/// weights alone or are global. An operator that could be split along several dimensions follows its first split
/// operand. One that needs sums over the split dimension and has rows along it, as norms have, is split by these rows.
/// A tensor after a global one can be split again where another split operand joins it. Throws Error(kInvalidArgument)
/// if `input_tensor` is not an input or lacks `dim`.
std::vector<int> choose_dims(const Graph& graph, int input_tensor, int dim);

/// Describes how the parts of a node exchange states when tensors are split along `dims`, for the first operand that
/// allows it. None: the node is computed by rows, or has no such operand.
std::optional<Partial> partial_of(const Graph& graph, const Node& node, const std::vector<int>& dims);

/// Counts of the nodes of a graph by kind, for dimensions that choose_dims returned.
struct Localities {
  int local = 0;     ///< computed in parts
  int partial = 0;   ///< computed in parts that exchange states, for sums over the split dimension
  int global = 0;    ///< need all rows of a split operand, or follow a node without rows
  int constant = 0;  ///< do not depend on an input
  bool operator==(const Localities&) const = default;
};
Localities count(const Graph& graph, const std::vector<int>& dims);

}  // namespace atl::infer
