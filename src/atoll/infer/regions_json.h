// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace atl::infer {

// The rules for other languages: they take graphs as graph_from_json does and return JSON objects (docs/regions.md).
// They throw as the functions of regions.h and dims.h do, and Error(kInvalidArgument) for a node that the graph lacks.

/// `split` of node number `node`: {"locality", "state_bytes", "operands": [{"tensor", "dim", "map"}]}; a global node
/// has no operands.
std::string split_json(const std::string& graph, std::int64_t node, int output_dim);

/// `slice`: {"operands": [{"tensor", "dim", "begin", "end"}], "pads": [{"operand", "dim", "low", "high", "value"}],
/// "changes": [{"argument", "value"}], "keep": [begin, end]}. Values are written as in a graph's arguments.
std::string slice_json(const std::string& graph, std::int64_t node, int output_dim, std::int64_t begin,
                       std::int64_t end);

/// `choose_dims` and `count`: {"dims": [...], "local", "partial", "global", "constant"}.
std::string dims_json(const std::string& graph, int input_tensor, int dim);

}  // namespace atl::infer
