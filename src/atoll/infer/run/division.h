// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// Which parts of a graph take part in a division. Operators are the inputs in order, then the nodes in order that depend
/// on an input; other nodes are constant, and each side computes them once. A plan has a share for each operator.
///
/// A node that needs sums over the divided dimension (Partial) is two operators, one behind the other: one makes the states
/// of the operand's rows, the other one the result from the states of all rows. A state is a tensor beside those of the
/// graph: it has the operand's rows, and any part of them is one state, with the bytes of one.
struct Operators {
  enum class Part { kNode, kState, kResult };
  struct Operator {
    int node = -1;            ///< -1: an input
    std::vector<int> makes;   ///< tensors: the input, outputs of the node that are used, or the state
    std::int64_t rows = 1;    ///< of each of `makes` along its dimension; 1: not divided
    Part part = Part::kNode;  ///< all of the node, its states, or its result from states
    int state = -1;           ///< index into `states`, of kState and kResult
  };
  struct State {
    int tensor = 0;  ///< its number: behind the graph's
    int node = 0;
    Partial partial;
  };
  std::vector<Operator> operators;
  std::vector<int> dims;         ///< by tensor, states included: the dimension that is divided, or -1
  std::vector<int> operator_of;  ///< by tensor, who makes it; -1: a weight or a constant
  std::vector<int> constants;    ///< nodes that depend on no input, in order, as far as others use them
  std::vector<State> states;
};

/// The operators of a graph whose input `input_tensor` is divided along `dim` (choose_dims); -1, -1: nothing is divided, and
/// each operator has one row. Where used outputs of a node would be divided differently, none is. Error(kInvalidArgument) as
/// choose_dims.
Operators operators_of(const Graph& graph, int input_tensor, int dim);

/// The tensors that operator `index` takes of operators, in order, a state last; a tensor may come twice.
std::vector<int> taken_by(const Graph& graph, const Operators& operators, int index);

/// All rows of a tensor as programs count them.
Region rows_of(const Graph& graph, const Operators& operators, int tensor);

/// What these rows of a tensor are.
Tensor type_of_rows(const Graph& graph, const Operators& operators, int tensor, Region rows);

/// The tensors among the graph's outputs, each once.
std::vector<int> outputs_of(const Graph& graph);

/// Who computes what in one inference: a plan, as both sides must know it. Nobody changes it once it is made.
struct Division {
  int input_tensor = -1;  ///< what operators_of was called with
  int dim = -1;
  std::vector<plan::Share> shares;  ///< by operator
  int chunks = 1;                   ///< in which inputs go up
  bool operator==(const Division&) const = default;
};

}  // namespace atl::infer
