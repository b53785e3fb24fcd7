// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace atl::infer {

// The rules for other languages: graphs as graph_from_json reads them, answers as JSON objects (docs/regions.md).
// Errors as those of the functions of regions.h and dims.h; kInvalidArgument for a node that the graph does not have.

/// `split` of node number `node`: {"locality", "state_bytes", "operands": [{"tensor", "dim", "map"}]}; global: no
/// operands.
std::string split_json(const std::string& graph, std::int64_t node, int output_dim);

/// `slice`: {"operands": [{"tensor", "dim", "begin", "end"}], "pads": [{"operand", "dim", "low", "high", "value"}],
/// "changes": [{"argument", "value"}], "keep": [begin, end]}. Values are written as in a graph's arguments.
std::string slice_json(const std::string& graph, std::int64_t node, int output_dim, std::int64_t begin,
                       std::int64_t end);

/// `choose_dims` and `count`: {"dims": [...], "local", "partial", "global", "constant"}.
std::string dims_json(const std::string& graph, int input_tensor, int dim);

}  // namespace atl::infer
