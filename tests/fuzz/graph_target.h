// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/dims.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/regions.h"
#include "tests/support/graph_text.h"

namespace atl::fuzz {

/// Runs `action`, which may throw only errors that name a fault of a graph or a request.
template <class Action>
void only_graph_errors(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol && error.kind() != ErrorKind::kInvalidArgument) std::abort();
  }
}

inline void node(const infer::Graph& graph, const infer::Node& node) {
  if (node.outputs.empty()) return;
  const infer::Shape& shape = graph.tensors[static_cast<std::size_t>(node.outputs.front())].shape;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const std::int64_t rows = shape[static_cast<std::size_t>(dim)];
    for (const Region part : {Region{0, rows / 2}, Region{rows / 2, rows}, Region{rows / 3, rows / 3 + 1}}) {
      only_graph_errors([&] { static_cast<void>(infer::slice(graph, node, dim, part)); });
    }
    only_graph_errors([&] { static_cast<void>(infer::split(graph, node, dim)); });
  }
}

/// A graph from an untrusted client: it is rejected by name, or can be written, read again and split.
inline void graph(const std::string& text) {
  only_graph_errors([&] {
    infer::Graph graph;
    try {
      graph = infer::graph_from_json(text);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kProtocol) std::abort();
      return;
    }
    const std::string written = infer::to_json(graph);
    if (infer::to_json(infer::graph_from_json(written)) != written) std::abort();
    const std::size_t most = std::min<std::size_t>(graph.nodes.size(), 100);
    for (std::size_t i = 0; i < most; ++i) node(graph, graph.nodes[i]);
    if (graph.nodes.size() > most) return;
    for (const int input : graph.inputs) {
      only_graph_errors([&] {
        const std::vector<int> dims = infer::choose_dims(graph, input, 0);
        const infer::Localities counts = infer::count(graph, dims);
        const int all = counts.local + counts.partial + counts.global + counts.constant;
        if (all != static_cast<int>(graph.nodes.size())) std::abort();
      });
    }
  });
}

}  // namespace atl::fuzz
