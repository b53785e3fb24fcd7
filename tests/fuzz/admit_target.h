// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/safety/admit.h"

namespace atl::fuzz {

/// A graph from an untrusted client: it does not parse, or is rejected, or is admitted; then it declares what each call
/// makes, and is admitted again.
inline void admission(const std::string& text) {
  infer::Graph graph;
  try {
    graph = infer::graph_from_json(text);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
    return;
  }
  bool admitted = true;
  try {
    infer::safety::admit(graph, {});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRefused) std::abort();
    admitted = false;
  }
  for (const infer::Node& node : graph.nodes) {
    std::vector<infer::Tensor> operands;
    for (const int id : infer::operands_of(node)) operands.push_back(graph.tensors[static_cast<std::size_t>(id)]);
    try {
      const std::vector<infer::Tensor> made = infer::safety::admit_call(graph, node, operands, {});
      for (std::size_t i = 0; admitted && i < made.size(); ++i) {
        if (made[i] != graph.tensors[static_cast<std::size_t>(node.outputs[i])]) std::abort();
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRefused || admitted) std::abort();
    }
  }
}

}  // namespace atl::fuzz
