// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/infer/graph.h"

namespace atl::infer {

inline constexpr std::size_t kMaxGraphBytes = std::size_t{16} << 20;

/// Reads a graph from its JSON text and checks it. The text may come from a stranger: anything invalid in it is
/// Error(kProtocol) that names the node and the field. PyTorch's "to the end" (2^63 - 1) as the end of a slice is
/// read as null, which means the same.
Graph graph_from_json(const std::string& text);

}  // namespace atl::infer
