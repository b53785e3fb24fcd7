// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/infer/graph.h"

namespace atl::infer {

/// For each tensor of `graph` the dimension along which its rows can be computed in parts, when input tensor
/// `input_tensor` is split along `dim`: -1 for those that are not, which come from other inputs or weights alone, or
/// are global. An operator of which several dimensions could be split follows its first split operand. A tensor after
/// a global one can be split again, where another split operand joins it. Throws Error(kInvalidArgument) if
/// `input_tensor` is not an input or lacks `dim`.
std::vector<int> choose_dims(const Graph& graph, int input_tensor, int dim);

/// How many nodes of `graph` are of which kind, under dimensions that choose_dims gave.
struct Localities {
  int local = 0;     ///< computed in parts
  int partial = 0;   ///< need sums over the split dimension
  int global = 0;    ///< need all rows of a split operand, or come after such a node
  int constant = 0;  ///< depend on no input
  bool operator==(const Localities&) const = default;
};
Localities count(const Graph& graph, const std::vector<int>& dims);

}  // namespace atl::infer
