// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

// Decides what a server runs for a stranger. A list of operators alone is not a security boundary: kernels trust the
// shapes of each other's results, and some read outside of their operands when those do not fit together. So each
// operator on the list has a validator that checks every argument and computes the outputs of the call, and a graph is
// admitted only if it declares the same. Values of tensors are unknown here: operators that take indices are listed
// only if their kernels check them.
namespace atl::infer::safety {

/// The limits of one client's graph.
struct Limits {
  std::int64_t node_bytes = std::int64_t{2} << 30;    ///< outputs of one node and its kernel's workspace
  std::int64_t weight_bytes = std::int64_t{8} << 30;  ///< of all weights
  double operations = 1e13;                           ///< of one run, estimated: additions and multiplications
  std::int64_t nodes = 20'000;
  std::int64_t outputs = 4'096;  ///< that the caller gets
  /// Estimated steps of the search for divisions along each dimension of each input, a few nanoseconds each.
  double searches = 1e10;
};

/// Throws Error(kRefused), which names the node and the reason, unless every node calls an operator on the list with
/// arguments that its validator knows to be harmless and declares exactly the outputs that the operator makes, all
/// within the limits. The graph must have passed `check`.
void admit(const Graph& graph, const Limits& limits);

/// Returns the outputs of a call of `node`'s operator with operands of these types (in the order of operands_of) and
/// with these arguments changed, as for a SlicedCall. They have the types and numbers of dimensions that `graph`
/// declares, unless `node` declares no outputs. Throws Error(kRefused) as `admit` does, and kInvalidArgument if the
/// number of operands is wrong or a change names an argument that does not exist.
std::vector<Tensor> admit_call(const Graph& graph, const Node& node, std::span<const Tensor> operands,
                               std::span<const Change> changes, const Limits& limits = {});

/// The names on the list, in order: "aten::add.Tensor".
std::vector<std::string> admitted_operators();

}  // namespace atl::infer::safety
