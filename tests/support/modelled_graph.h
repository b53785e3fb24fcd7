// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/infer/graph.h"
#include "atoll/infer/profile.h"
#include "atoll/plan/operators/operators.h"

// Models that make the bytes and take the time of others whose weights and code are not available: each node stands for
// an operator of a plan::OperatorGraph. Results can still be checked, see modelled_runner.h.
namespace atl::infer::test {

inline constexpr const char* kLayer = "modelled::layer";

/// Arguments of a layer: its operands; for each operand, whether rows need only rows in proportion; the fixed seconds
/// and the seconds per row, on the robot and on the server; and the rows to compute.
enum LayerArgument { kOperands, kByRows, kCosts, kRows };

/// Returns a graph whose tensors have as many rows and bytes as the operators' outputs (rounded up to whole rows), as
/// bytes. Operands with `needed` must need rows in proportion, without a halo.
Graph modelled_graph(const plan::OperatorGraph& operators);

/// The time that each layer takes on one of the two machines.
enum class Machine { kRobot, kServer };
Profile modelled_profile(const Graph& graph, Machine machine);

/// Registers the rule of layers; may be called repeatedly.
void register_layer_rule();

}  // namespace atl::infer::test
