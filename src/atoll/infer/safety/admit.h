// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

// What a server runs for a stranger. A list of operators alone is no boundary: kernels trust the shapes of each other's
// results, and some read outside of their operands when those do not fit together. So each operator on the list has a
// validator that looks at every argument and says what the call makes, and a graph is admitted only if it declares the
// same. Values of tensors are not seen here: operators that take indices are on the list where their kernels check them.
namespace atl::infer::safety {

/// The most that one client's graph may ask for.
struct Limits {
  std::int64_t node_bytes = std::int64_t{2} << 30;    ///< outputs of one node, and what its kernel needs beside them
  std::int64_t weight_bytes = std::int64_t{8} << 30;  ///< of all weights
  double operations = 1e13;                           ///< of one run, estimated: additions and multiplications
  std::int64_t nodes = 20'000;
  std::int64_t outputs = 4'096;  ///< that the caller gets
  /// Estimated steps of finding which rows come from which, along each dimension of each input: a few nanoseconds each.
  double searches = 1e10;
};

/// Throws Error(kRefused), which names the node and the reason, unless every node calls an operator on the list with
/// arguments that its validator knows to be harmless, declares exactly the outputs that the operator makes, and all is
/// within the limits. The graph has passed `check`.
void admit(const Graph& graph, const Limits& limits);

/// What a call of the operator of `node` makes with operands of these types (in the order of operands_of) and with these
/// arguments changed, as a SlicedCall asks for; of the types and counts of dimensions that `graph` declares, unless `node`
/// declares no outputs. Throws Error(kRefused) as `admit` does; kInvalidArgument if there are
/// more or fewer operands or a change names no argument.
std::vector<Tensor> admit_call(const Graph& graph, const Node& node, std::span<const Tensor> operands,
                               std::span<const Change> changes, const Limits& limits = {});

/// The list, in order of names: "aten::add.Tensor".
std::vector<std::string> admitted_operators();

}  // namespace atl::infer::safety
