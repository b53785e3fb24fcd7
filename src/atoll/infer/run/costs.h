// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/operators.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// The cost of a node on one device, whichever of its dimensions is divided: seconds of a launch, and seconds of all
/// its rows beyond that, of which a part takes its share.
struct NodeCost {
  double fixed = 0;
  double all_rows = 0;
};

/// By node of a graph; empty: everything is free.
using NodeCosts = std::vector<NodeCost>;

/// Makes the planner's graph of the operators: operator i of one is operator i of the other, and their operands are
/// those of taken_by. A node with states costs as much as without them, divided between two operators. Bytes are those
/// of the used outputs, in their own element types. If the caller gets only constants, the output is the first input,
/// which the robot has. Throws Error(kInvalidArgument) for a profile that is neither empty nor has an entry for each
/// node.
plan::OperatorGraph operator_graph(const Graph& graph, const Operators& operators, const NodeCosts& robot,
                                   const NodeCosts& server);

}  // namespace atl::infer
