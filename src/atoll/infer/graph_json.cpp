// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph_json.h"

#include <cstdint>
#include <set>
#include <utility>

#include "atoll/infer/argument_json.h"
#include "atoll/infer/malformed.h"
#include "atoll/plan/json_fields.h"

namespace atl::infer {
namespace {

constexpr int kMaxGraphDepth = 8;  // a well-formed graph has 6

// Readers disagree on which of two values under one key counts, so duplicate keys are refused.
Json parse(const std::string& text) {
  if (text.size() > kMaxGraphBytes) {
    malformed("the graph's JSON has " + std::to_string(text.size()) + " bytes: at most " +
              std::to_string(kMaxGraphBytes));
  }
  if (plan::is_deeper(text, kMaxGraphDepth)) malformed("the graph's JSON is nested deeper than a graph can be");
  std::vector<std::set<std::string>> open;
  std::string twice;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      if (!open.back().insert(key).second) twice = key;
    }
    return true;
  };
  Json value = Json::parse(text, watch, false);
  if (value.is_discarded()) malformed("the graph is not JSON: " + text.substr(0, 80));
  if (!twice.empty()) malformed("the graph's JSON has the key \"" + twice.substr(0, 80) + "\" twice in one object");
  return value;
}

// Reads an object key by key; `done` refuses keys that were not read.
class Object {
 public:
  Object(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) malformed(where_ + " is " + json_.dump().substr(0, 80) + ": give an object with keys");
  }

  const std::string& where() const { return where_; }
  std::string at_key(const char* key) const { return where_ + "'s \"" + key + "\""; }

  const Json* find(const char* key) {
    asked_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  const Json& at(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) malformed(where_ + " lacks \"" + std::string(key) + "\"");
    return *value;
  }
  const Json& list(const char* key, std::size_t most) {
    const Json& value = at(key);
    if (!value.is_array()) malformed(at_key(key) + " is " + value.dump().substr(0, 80) + ": give a list");
    if (value.size() > most) {
      malformed(at_key(key) + " has " + std::to_string(value.size()) + " entries: at most " + std::to_string(most));
    }
    return value;
  }
  std::string text(const char* key) { return text_from(at(key), at_key(key)); }
  std::vector<int> ids(const char* key, std::size_t most) {
    std::vector<int> ids;
    for (const Json& id : list(key, most)) ids.push_back(tensor_from(id, at_key(key)));
    return ids;
  }
  void done() const {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) malformed(where_ + " has an unknown key \"" + key.substr(0, 80) + "\"");
    }
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> asked_;
};

Tensor tensor_of(const Json& json, std::size_t index) {
  Object object(json, "tensor " + std::to_string(index));
  Tensor tensor;
  const std::string name = object.text("dtype");
  const std::optional<Dtype> dtype = try_dtype(name);
  if (!dtype) malformed(object.where() + " has the dtype \"" + name.substr(0, 80) + "\", which is not supported");
  tensor.dtype = *dtype;
  for (const Json& size : object.list("shape", kMaxDims)) {
    tensor.shape.push_back(integer_from(size, object.at_key("shape")));
  }
  object.done();
  return tensor;
}

Weight weight_of(const Json& json, std::size_t index) {
  Object object(json, "weight " + std::to_string(index));
  Weight weight{tensor_from(object.at("tensor"), object.at_key("tensor")), object.text("name")};
  object.done();
  return weight;
}

bool is_to_the_end(const std::string& op, std::size_t argument, const Json& value) {
  const bool is_end = (op == "aten::slice" && argument == 3) || (op == "aten::slice_scatter" && argument == 4);
  return is_end && value.is_number_unsigned() && value.get<std::uint64_t>() == INT64_MAX;
}

Node node_of(const Json& json, std::size_t index) {
  Object object(json, "node " + std::to_string(index));
  Node node;
  node.op = object.text("op");
  node.overload = object.text("overload");
  const std::string where = object.where() + " (" + node.name().substr(0, 80) + ")'s argument ";
  for (const Json& value : object.list("args", kMaxArguments)) {
    const std::size_t argument = node.args.size();
    if (is_to_the_end(node.op, argument, value)) {
      node.args.emplace_back();
    } else {
      node.args.push_back(argument_from(value, where + std::to_string(argument)));
    }
  }
  node.outputs = object.ids("outputs", kMaxArguments);
  const Json& list = object.at("list");
  if (!list.is_boolean())
    malformed(object.at_key("list") + " is " + list.dump().substr(0, 80) + ": give true or false");
  node.is_list = list.get<bool>();
  if (object.find("module") != nullptr) node.module = object.text("module");
  object.done();
  return node;
}

Argument output_of(const Json& json, std::size_t index) {
  Object object(json, "output " + std::to_string(index));
  const Json* constant = object.find("constant");
  Argument output = constant != nullptr ? argument_from(*constant, object.where())
                                        : Argument(TensorId{tensor_from(object.at("tensor"), object.where())});
  if (constant != nullptr && (std::holds_alternative<TensorId>(output) || std::holds_alternative<TensorIds>(output))) {
    malformed(object.where() + " is a constant that is a tensor: give {\"tensor\": index}");
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
  const Json json = parse(text);
  Object object(json, "the graph");
  if (const Json& version = object.at("atoll_graph"); version != 1) {
    malformed("the graph has version " + version.dump().substr(0, 80) +
              ", but this Atoll reads version 1: export it again");
  }
  Graph graph;
  graph.tensors = entries<Tensor>(object.list("tensors", kMaxTensors), tensor_of);
  graph.inputs = object.ids("inputs", kMaxTensors);
  graph.weights = entries<Weight>(object.list("weights", kMaxTensors), weight_of);
  graph.nodes = entries<Node>(object.list("nodes", kMaxNodes), node_of);
  graph.outputs = entries<Argument>(object.list("outputs", kMaxTensors), output_of);
  if (const Json* structure = object.find("structure")) {
    Object texts(*structure, "the graph's structure");
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
