// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

namespace atl::infer {

/// The operators of a graph that a plan distributes: the inputs in order, then in order the nodes that depend on an
/// input. Other nodes are constant, and each side computes them once. A plan has a share for each operator.
///
/// A node that needs sums over the divided dimension (Partial) becomes two consecutive operators: one makes the states
/// of the operand's rows, the other makes the result from the states of all rows. A state is a tensor in addition to
/// those of the graph: it has the operand's rows, and any range of them is one state, with the bytes of one.
struct Operators {
  enum class Part { kNode, kState, kResult };
  struct Operator {
    int node = -1;            ///< -1: an input
    std::vector<int> makes;   ///< tensors: the input, the used outputs of the node, or the state
    std::int64_t rows = 1;    ///< of each of `makes` along its dimension; 1: not divided
    Part part = Part::kNode;  ///< the whole node, its states, or its result from states
    int state = -1;           ///< index into `states`, for kState and kResult
  };
  struct State {
    int tensor = 0;  ///< its number, after those of the graph's tensors
    int node = 0;
    Partial partial;
  };
  std::vector<Operator> operators;
  std::vector<int> dims;         ///< by tensor, states included: the dimension that is divided, or -1
  std::vector<int> operator_of;  ///< by tensor, the operator that makes it; -1: a weight or a constant
  std::vector<int> constants;    ///< used nodes that do not depend on an input, in order
  std::vector<State> states;
};

/// The operators of a graph whose input `input_tensor` is divided along `dim` (choose_dims); -1, -1: nothing is
/// divided, and each operator has one row. If used outputs of a node would be divided differently, none of them is.
/// Throws Error(kInvalidArgument) as choose_dims does.
Operators operators_of(const Graph& graph, int input_tensor, int dim);

/// The tensors made by operators that operator `index` takes, in order, a state last; a tensor may occur twice.
std::vector<int> taken_by(const Graph& graph, const Operators& operators, int index);
/// The same of all operators.
std::vector<std::vector<int>> taken_by_all(const Graph& graph, const Operators& operators);

/// All rows of a tensor as programs count them.
Region rows_of(const Graph& graph, const Operators& operators, int tensor);

/// The type of these rows of a tensor.
Tensor type_of_rows(const Graph& graph, const Operators& operators, int tensor, Region rows);

/// The tensors among the graph's outputs, each once.
std::vector<int> outputs_of(const Graph& graph);

}  // namespace atl::infer
