// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/infer/safety/admit.h"

namespace atl::infer::safety {

// Admission for other languages: graphs as graph_from_json reads them. Errors as those of admit.h; kInvalidArgument for
// limits, operands or changes that cannot be read and for a node that the graph does not have.

/// {"node_bytes", "weight_bytes", "operations", "nodes"}: what is missing has its default.
Limits limits_from_json(const std::string& text);

/// `admit`.
void admit_json(const std::string& graph, const std::string& limits);

/// `admit_call` of node number `node`: what it makes, [{"dtype", "shape"}]. `call` is {"operands": [{"dtype", "shape"}],
/// "changes": [{"argument", "value"}]}, values as in a graph's arguments; without "operands" those of the graph.
std::string admit_call_json(const std::string& graph, std::int64_t node, const std::string& call,
                            const std::string& limits);

}  // namespace atl::infer::safety
