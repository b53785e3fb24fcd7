// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/regions_json.h"

#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/argument_json.h"
#include "atoll/infer/dims.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/regions.h"

namespace atl::infer {
namespace {

const Node& node_at(const Graph& graph, std::int64_t index) {
  if (index < 0 || index >= static_cast<std::int64_t>(graph.nodes.size())) {
    throw Error(ErrorKind::kInvalidArgument,
                "there is no node " + std::to_string(index) + ": the graph has " + std::to_string(graph.nodes.size()));
  }
  return graph.nodes[static_cast<std::size_t>(index)];
}

}  // namespace

std::string split_json(const std::string& graph, std::int64_t node, int output_dim) {
  const Graph parsed = graph_from_json(graph);
  const NodeSplit found = split(parsed, node_at(parsed, node), output_dim).value_or(NodeSplit{});
  Json operands = Json::array();
  for (const OperandSplit& operand : found.operands) {
    operands.push_back({{"tensor", operand.tensor},
                        {"dim", operand.dim},
                        {"map", operand.dim < 0 ? std::string("whole") : to_string(operand.map)}});
  }
  Json answer = Json::object();
  answer["locality"] = to_string(found.locality);
  answer["state_bytes"] = found.state_bytes;
  answer["operands"] = std::move(operands);
  return answer.dump();
}

std::string slice_json(const std::string& graph, std::int64_t node, int output_dim, std::int64_t begin,
                       std::int64_t end) {
  const Graph parsed = graph_from_json(graph);
  const SlicedCall call = slice(parsed, node_at(parsed, node), output_dim, {begin, end});
  Json answer{{"operands", Json::array()}, {"pads", Json::array()}, {"changes", Json::array()}};
  for (const OperandSlice& operand : call.operands) {
    answer["operands"].push_back(
        {{"tensor", operand.tensor}, {"dim", operand.dim}, {"begin", operand.rows.begin}, {"end", operand.rows.end}});
  }
  for (const Pad& pad : call.pads) {
    answer["pads"].push_back({{"operand", pad.operand},
                              {"dim", pad.dim},
                              {"low", pad.low},
                              {"high", pad.high},
                              {"value", argument_json(pad.value)}});
  }
  for (const Change& change : call.changes) {
    answer["changes"].push_back({{"argument", change.argument}, {"value", argument_json(change.value)}});
  }
  answer["keep"] = {call.keep.begin, call.keep.end};
  return answer.dump();
}

std::string dims_json(const std::string& graph, int input_tensor, int dim) {
  const Graph parsed = graph_from_json(graph);
  const std::vector<int> dims = choose_dims(parsed, input_tensor, dim);
  const Localities counts = count(parsed, dims);
  return Json{{"dims", dims},
              {"local", counts.local},
              {"partial", counts.partial},
              {"global", counts.global},
              {"constant", counts.constant}}
      .dump();
}

}  // namespace atl::infer
