// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "atoll/infer/graph.h"
#include "atoll/json/parse.h"

// Graphs as JSON, for tests and benchmarks that build them. Models come from the export, which is in Python.
namespace atl::infer {
namespace test {

struct ArgumentWriter {
  using Json = json::Json;

  static Json tagged(const char* tag, Json content) {
    Json value = Json::object();
    value[tag] = std::move(content);
    return value;
  }
  static Json number(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }

  Json operator()(std::monostate /*nothing*/) const { return nullptr; }
  Json operator()(bool value) const { return value; }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(double value) const { return std::isfinite(value) ? Json(value) : tagged("float", number(value)); }
  Json operator()(TensorId tensor) const { return tagged("tensor", tensor.id); }
  Json operator()(const TensorIds& list) const {
    Json ids = Json::array();
    for (const std::optional<int>& id : list.ids) ids.push_back(id ? Json(*id) : Json(nullptr));
    return tagged("tensors", std::move(ids));
  }
  Json operator()(const Ints& values) const { return tagged("ints", values); }
  Json operator()(const Floats& values) const {
    Json list = Json::array();
    for (const double value : values) list.push_back(number(value));
    return tagged("floats", std::move(list));
  }
  Json operator()(const Bools& values) const { return tagged("bools", values); }
  Json operator()(const Text& text) const { return tagged("text", text.value); }
  Json operator()(Dtype dtype) const { return tagged("dtype", to_string(dtype)); }
  Json operator()(MemoryFormat format) const {
    constexpr std::array kNames{"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};
    return tagged("memory_format", kNames[static_cast<std::size_t>(format)]);
  }
  Json operator()(Layout /*strided*/) const { return tagged("layout", "strided"); }
  Json operator()(RunnersDevice /*device*/) const { return tagged("device", true); }
};

/// The JSON of an argument, from which an equal one is read.
inline json::Json argument_json(const Argument& argument) { return std::visit(ArgumentWriter(), argument); }

}  // namespace test

/// The JSON text of `graph`, the same for equal graphs. graph_from_json reads an equal graph from it.
inline std::string to_json(const Graph& graph) {
  using json::Json;
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
    for (const Argument& argument : node.args) args.push_back(test::argument_json(argument));
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
      json["outputs"].push_back(test::argument_json(output));
    } else {
      Json value = Json::object();
      value["constant"] = test::argument_json(output);
      json["outputs"].push_back(std::move(value));
    }
  }
  json["structure"] = {{"input", graph.input_structure}, {"output", graph.output_structure}};
  return json.dump();
}

}  // namespace atl::infer
