// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/infer/safety/admit.h"

namespace atl::infer::safety {

// Admission for other languages: graphs are passed as graph_from_json reads them. The functions throw as those of
// admit.h, and Error(kInvalidArgument) for limits, operands or changes that cannot be read and for a node that the
// graph lacks.

/// {"node_bytes", "weight_bytes", "operations", "nodes"}; missing ones keep their defaults.
Limits limits_from_json(const std::string& text);

/// `admit`.
void admit_json(const std::string& graph, const std::string& limits);

/// `admit_call` of node number `node`. Returns the outputs, [{"dtype", "shape"}]. `call` is {"operands": [{"dtype",
/// "shape"}], "changes": [{"argument", "value"}]}, with values as in a graph's arguments; "operands" default to those
/// of the graph.
std::string admit_call_json(const std::string& graph, std::int64_t node, const std::string& call,
                            const std::string& limits);

}  // namespace atl::infer::safety
