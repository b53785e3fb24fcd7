// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

namespace atl::infer {

/// For each tensor of `graph` the dimension along which its rows can be computed in parts, when input tensor
/// `input_tensor` is split along `dim`: -1 for those that are not, which come from other inputs or weights alone, or
/// are global. An operator of which several dimensions could be split follows its first split operand; one that needs
/// sums over the split dimension, and has rows along it, as norms have, is split by these. A tensor after a global one
/// can be split again, where another split operand joins it. Throws Error(kInvalidArgument) if `input_tensor` is not an
/// input or lacks `dim`.
std::vector<int> choose_dims(const Graph& graph, int input_tensor, int dim);

/// How the parts of a node exchange states, when tensors are split along `dims`: of the first operand for which there is
/// a way. None: it is computed by rows, or has no such operand.
std::optional<Partial> partial_of(const Graph& graph, const Node& node, const std::vector<int>& dims);

/// How many nodes of `graph` are of which kind, under dimensions that choose_dims gave.
struct Localities {
  int local = 0;     ///< computed in parts
  int partial = 0;   ///< the same with states exchanged, of sums over the split dimension
  int global = 0;    ///< need all rows of a split operand, or come after a node without rows
  int constant = 0;  ///< depend on no input
  bool operator==(const Localities&) const = default;
};
Localities count(const Graph& graph, const std::vector<int>& dims);

}  // namespace atl::infer
