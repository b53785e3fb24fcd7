// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph_json.h"

#include <cstdint>
#include <utility>

#include "atoll/infer/argument_json.h"
#include "atoll/infer/malformed.h"
#include "atoll/json/fields.h"

namespace atl::infer {
namespace {

using json::Fields;

// A graph has 6 levels.
constexpr json::Rules kGraphRules{.kind = ErrorKind::kProtocol, .levels = 8, .has_unique_keys = true};

Fields object_of(const Json& json, std::string what) { return {json, std::move(what), kGraphRules.kind}; }

std::vector<int> ids_of(Fields& object, const char* key, std::size_t most) {
  std::vector<int> ids;
  for (const Json& id : object.list(key, most)) ids.push_back(tensor_from(id, object.name_of(key)));
  return ids;
}

int tensor_in(Fields& object) { return tensor_from(object.at("tensor"), object.name_of("tensor")); }

Tensor tensor_of(const Json& json, std::size_t index) {
  Fields object = object_of(json, "tensor " + std::to_string(index));
  Tensor tensor;
  const std::string name = object.text("dtype");
  const std::optional<Dtype> dtype = try_dtype(name);
  if (!dtype) malformed(object.what() + " has the dtype \"" + name.substr(0, 80) + "\", which is not supported");
  tensor.dtype = *dtype;
  for (const Json& size : object.list("shape", kMaxDims)) {
    tensor.shape.push_back(integer_from(size, object.name_of("shape")));
  }
  object.done();
  return tensor;
}

Weight weight_of(const Json& json, std::size_t index) {
  Fields object = object_of(json, "weight " + std::to_string(index));
  Weight weight{tensor_in(object), object.text("name")};
  object.done();
  return weight;
}

bool is_to_the_end(const std::string& op, std::size_t argument, const Json& value) {
  const bool is_end = (op == "aten::slice" && argument == 3) || (op == "aten::slice_scatter" && argument == 4);
  return is_end && value.is_number_unsigned() && value.get<std::uint64_t>() == INT64_MAX;
}

Node node_of(const Json& json, std::size_t index) {
  Fields object = object_of(json, "node " + std::to_string(index));
  Node node;
  node.op = object.text("op");
  node.overload = object.text("overload");
  const std::string where = object.what() + " (" + node.name().substr(0, 80) + ")'s argument ";
  for (const Json& value : object.list("args", kMaxArguments)) {
    const std::size_t argument = node.args.size();
    if (is_to_the_end(node.op, argument, value)) {
      node.args.emplace_back();
    } else {
      node.args.push_back(argument_from(value, where + std::to_string(argument)));
    }
  }
  node.outputs = ids_of(object, "outputs", kMaxArguments);
  node.is_list = object.boolean("list");
  if (object.find("module") != nullptr) node.module = object.text("module");
  object.done();
  return node;
}

Argument output_of(const Json& json, std::size_t index) {
  Fields object = object_of(json, "output " + std::to_string(index));
  const Json* constant = object.find("constant");
  Argument output =
      constant != nullptr ? argument_from(*constant, object.what()) : Argument(TensorId{tensor_in(object)});
  if (constant != nullptr && (std::holds_alternative<TensorId>(output) || std::holds_alternative<TensorIds>(output))) {
    malformed(object.what() + " is a constant that is a tensor: give {\"tensor\": index}");
  }
  object.done();
  return output;
}

template <typename Entry, typename Read>
std::vector<Entry> entries(const Json& list, Read read) {
  std::vector<Entry> result;
  for (const Json& value : list) result.push_back(read(value, result.size()));
  return result;
}

}  // namespace

Graph graph_from_json(const std::string& text) {
  if (text.size() > kMaxGraphBytes) {
    malformed("the graph's JSON has " + std::to_string(text.size()) + " bytes: at most " +
              std::to_string(kMaxGraphBytes));
  }
  const Json json = json::parse(text, "the graph", kGraphRules);
  Fields object = object_of(json, "the graph");
  if (const Json& version = object.at("atoll_graph"); version != 1) {
    malformed("the graph has version " + version.dump().substr(0, 80) +
              ", but this Atoll reads version 1: export it again");
  }
  Graph graph;
  graph.tensors = entries<Tensor>(object.list("tensors", kMaxTensors), tensor_of);
  graph.inputs = ids_of(object, "inputs", kMaxTensors);
  graph.weights = entries<Weight>(object.list("weights", kMaxTensors), weight_of);
  graph.nodes = entries<Node>(object.list("nodes", kMaxNodes), node_of);
  graph.outputs = entries<Argument>(object.list("outputs", kMaxTensors), output_of);
  if (const Json* structure = object.find("structure")) {
    Fields texts = object_of(*structure, "the graph's structure");
    graph.input_structure = texts.text("input");
    graph.output_structure = texts.text("output");
    texts.done();
  }
  object.done();
  check(graph);
  return graph;
}

std::string to_json(const Graph& graph) {
  Json json{{"atoll_graph", 1}, {"inputs", graph.inputs}};
  json["tensors"] = Json::array();
  for (const Tensor& tensor : graph.tensors) {
    json["tensors"].push_back({{"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}});
  }
  json["weights"] = Json::array();
  for (const Weight& weight : graph.weights) {
    json["weights"].push_back({{"tensor", weight.tensor}, {"name", weight.name}});
  }
  json["nodes"] = Json::array();
  for (const Node& node : graph.nodes) {
    Json args = Json::array();
    for (const Argument& argument : node.args) args.push_back(argument_json(argument));
    json["nodes"].push_back({{"op", node.op},
                             {"overload", node.overload},
                             {"args", std::move(args)},
                             {"outputs", node.outputs},
                             {"list", node.is_list}});
    if (!node.module.empty()) json["nodes"].back()["module"] = node.module;
  }
  json["outputs"] = Json::array();
  for (const Argument& output : graph.outputs) {
    if (std::holds_alternative<TensorId>(output)) {
      json["outputs"].push_back(argument_json(output));
    } else {
      Json value = Json::object();
      value["constant"] = argument_json(output);
      json["outputs"].push_back(std::move(value));
    }
  }
  json["structure"] = {{"input", graph.input_structure}, {"output", graph.output_structure}};
  return json.dump();
}

}  // namespace atl::infer
