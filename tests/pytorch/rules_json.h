// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "atoll/infer/graph_json.h"
#include "atoll/infer/plan.h"
#include "atoll/infer/regions.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/json/parse.h"
#include "atoll/plan/text.h"
#include "tests/support/graph_text.h"
#include "tests/support/rules_text.h"

// Rules, admission and divisions for tests in Python: they take graphs as graph_from_json does and return JSON. They
// throw as the functions of regions.h and admit.h do, and Error(kInvalidArgument) for a node that the graph lacks.
namespace atl::infer::test {

using json::Json;

inline const Node& node_at(const Graph& graph, std::int64_t index) {
  if (index < 0 || index >= static_cast<std::int64_t>(graph.nodes.size())) {
    plan::refuse("there is no node " + std::to_string(index) + ": the graph has " + std::to_string(graph.nodes.size()));
  }
  return graph.nodes[static_cast<std::size_t>(index)];
}

/// `split` of node number `node`: {"locality", "state_bytes", "operands": [{"tensor", "dim", "map"}]}; a global node
/// has no operands.
inline std::string split_json(const std::string& graph, std::int64_t node, int output_dim) {
  const Graph parsed = graph_from_json(graph);
  const NodeSplit found = split(parsed, node_at(parsed, node), output_dim).value_or(NodeSplit{});
  Json operands = Json::array();
  for (const OperandSplit& operand : found.operands) {
    operands.push_back({{"tensor", operand.tensor},
                        {"dim", operand.dim},
                        {"map", operand.dim < 0 ? std::string("whole") : to_string(operand.map)}});
  }
  return Json{
      {"locality", to_string(found.locality)}, {"state_bytes", found.state_bytes}, {"operands", std::move(operands)}}
      .dump();
}

/// `slice`: {"operands": [{"tensor", "dim", "begin", "end"}], "pads": [{"operand", "dim", "low", "high", "value"}],
/// "changes": [{"argument", "value"}], "keep": [begin, end]}. Values are written as in a graph's arguments.
inline std::string slice_json(const std::string& graph, std::int64_t node, int output_dim, Region rows) {
  const Graph parsed = graph_from_json(graph);
  const SlicedCall call = slice(parsed, node_at(parsed, node), output_dim, rows);
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

/// {"node_bytes", "weight_bytes", "operations", "nodes"}; missing ones keep their defaults.
inline safety::Limits limits_from(const std::string& text) {
  safety::Limits limits;
  const Json parsed = json::parse(text, "limits");
  for (const auto& [key, value] : parsed.items()) {
    if (key == "node_bytes") {
      limits.node_bytes = value.get<std::int64_t>();
    } else if (key == "weight_bytes") {
      limits.weight_bytes = value.get<std::int64_t>();
    } else if (key == "operations") {
      limits.operations = value.get<double>();
    } else if (key == "nodes") {
      limits.nodes = value.get<std::int64_t>();
    } else {
      plan::refuse("there is no limit " + key + ": give node_bytes, weight_bytes, operations or nodes");
    }
  }
  return limits;
}

/// An argument as graphs have them, other than a tensor.
inline Argument argument_from(const Json& value) {
  const Json none = Json::array();
  Json graph{{"atoll_graph", 1}, {"tensors", none}, {"inputs", none},
             {"weights", none},  {"nodes", none},   {"outputs", none}};
  graph["outputs"].push_back(Json::object({{"constant", value}}));
  return graph_from_json(graph.dump()).outputs.front();
}

/// `admit_call` of node number `node`. Returns the outputs, [{"dtype", "shape"}]. `call` is {"operands": [{"dtype",
/// "shape"}], "changes": [{"argument", "value"}]}, with values as in a graph's arguments; "operands" default to those
/// of the graph.
inline std::string admit_call_json(const std::string& graph, std::int64_t node, const std::string& call,
                                   const std::string& limits) {
  const Graph parsed = graph_from_json(graph);
  const Node& called = node_at(parsed, node);
  const Json asked = json::parse(call, "a call");
  std::vector<Tensor> operands;
  if (asked.contains("operands")) {
    for (const Json& operand : asked["operands"]) {
      operands.push_back({try_dtype(operand.at("dtype").get<std::string>()).value(), operand.at("shape").get<Shape>()});
    }
  } else {
    for (const int id : operands_of(called)) operands.push_back(parsed.tensors[static_cast<std::size_t>(id)]);
  }
  std::vector<Change> changes;
  for (const Json& change : asked.value("changes", Json::array())) {
    changes.push_back({change.at("argument").get<std::size_t>(), argument_from(change.at("value"))});
  }
  Json answer = Json::array();
  for (const Tensor& made : safety::admit_call(parsed, called, operands, changes, limits_from(limits))) {
    answer.push_back({{"dtype", to_string(made.dtype)}, {"shape", made.shape}});
  }
  return answer.dump();
}

/// {"chunks": c, "dim": d, "input": t, "shares": [[robot begin, robot end, server begin, server end], ...]}
inline std::string division_json(const Plan& division) {
  Json shares = Json::array();
  for (const plan::Share& share : division.shares) {
    shares.push_back({share.robot.begin, share.robot.end, share.server.begin, share.server.end});
  }
  return Json{{"input", division.input_tensor},
              {"dim", division.dim},
              {"chunks", division.chunks},
              {"shares", std::move(shares)}}
      .dump();
}

/// Reads what division_json wrote.
inline Plan division_from(const std::string& text) {
  const Json parsed = json::parse(text, "a division");
  Plan division{parsed.at("input").get<int>(), parsed.at("dim").get<int>(), {}, parsed.at("chunks").get<int>()};
  for (const Json& share : parsed.at("shares")) {
    const auto row = [&](std::size_t i) { return share.at(i).get<std::int64_t>(); };
    division.shares.push_back({{row(0), row(1)}, {row(2), row(3)}});
  }
  return division;
}

}  // namespace atl::infer::test
