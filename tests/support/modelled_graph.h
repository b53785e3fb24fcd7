// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/plan/operators/operators.h"

// Models that make the bytes and take the time of others, whose weights and code are not at hand: each node stands for
// an operator of a plan::OperatorGraph. Results can be checked all the same, see modelled_runner.h.
namespace atl::infer::test {

inline constexpr const char* kLayer = "modelled::layer";

/// Arguments of a layer: operands; for each, whether rows need only rows in proportion; on the robot and on the server the fixed
/// seconds and those of a row; which rows are computed.
enum LayerArgument { kOperands, kByRows, kCosts, kRows };

/// A graph whose tensors have as many rows and bytes as the operators' outputs (rounded up to whole rows), as bytes. Operands
/// with `needed` must need rows in proportion, without a halo.
Graph modelled_graph(const plan::OperatorGraph& operators);

/// What the layers take.
enum class Machine { kRobot, kServer };
Profile modelled_profile(const Graph& graph, Machine machine);

/// Makes the rule of layers known; again does nothing.
void register_layer_rule();

}  // namespace atl::infer::test
