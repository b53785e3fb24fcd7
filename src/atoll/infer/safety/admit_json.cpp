// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/admit_json.h"

#include <utility>

#include "atoll/infer/argument_json.h"
#include "atoll/infer/graph_json.h"
#include "atoll/plan/text.h"

namespace atl::infer::safety {
namespace {

Json object_from(const std::string& text, const std::string& what) {
  Json value = json::parse(text, what);
  if (!value.is_object()) plan::refuse(what + " must be a JSON object, not " + text.substr(0, 80));
  return value;
}

Tensor tensor_from(const Json& value) {
  const auto dtype = value.is_object() && value.contains("dtype") && value["dtype"].is_string()
                         ? try_dtype(value["dtype"].get<std::string>())
                         : std::nullopt;
  if (!dtype || !value.contains("shape") || !value["shape"].is_array())
    plan::refuse("an operand lacks a valid dtype or shape");
  Tensor tensor{*dtype, {}};
  for (const Json& size : value["shape"]) tensor.shape.push_back(integer_from(size, "a size of an operand"));
  return tensor;
}

Change change_from(const Json& value) {
  const bool good = value.is_object() && value.contains("argument") && value["argument"].is_number_unsigned() &&
                    value.contains("value");
  if (!good) plan::refuse("a change lacks a valid argument or a value");
  return {value["argument"].get<std::size_t>(), argument_from(value["value"], "a changed argument")};
}

}  // namespace

Limits limits_from_json(const std::string& text) {
  Limits limits;
  const Json object = object_from(text, "limits");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_number() || value.get<double>() < 0)
      plan::refuse("the limit " + key + " must be a non-negative number");
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

void admit_json(const std::string& graph, const std::string& limits) {
  admit(graph_from_json(graph), limits_from_json(limits));
}

std::string admit_call_json(const std::string& graph, std::int64_t node, const std::string& call,
                            const std::string& limits) {
  const Graph parsed = graph_from_json(graph);
  if (node < 0 || node >= static_cast<std::int64_t>(parsed.nodes.size())) {
    plan::refuse("there is no node " + std::to_string(node) + ": the graph has " + std::to_string(parsed.nodes.size()));
  }
  const Node& called = parsed.nodes[static_cast<std::size_t>(node)];
  const Json asked = object_from(call, "a call");
  std::vector<Tensor> operands;
  if (asked.contains("operands")) {
    for (const Json& operand : asked["operands"]) operands.push_back(tensor_from(operand));
  } else {
    for (const int id : operands_of(called)) operands.push_back(parsed.tensors[static_cast<std::size_t>(id)]);
  }
  std::vector<Change> changes;
  if (asked.contains("changes")) {
    for (const Json& change : asked["changes"]) changes.push_back(change_from(change));
  }
  Json answer = Json::array();
  for (const Tensor& made : admit_call(parsed, called, operands, changes, limits_from_json(limits))) {
    answer.push_back({{"dtype", to_string(made.dtype)}, {"shape", made.shape}});
  }
  return answer.dump();
}

}  // namespace atl::infer::safety
