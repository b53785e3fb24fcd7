// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph_json.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "atoll/infer/malformed.h"
#include "atoll/json/fields.h"

namespace atl::infer {
namespace {

using json::Fields;
using json::Json;

// A graph has 6 levels.
constexpr json::Rules kGraphRules{.kind = ErrorKind::kProtocol, .levels = 8, .has_unique_keys = true};

constexpr std::array<const char*, 4> kMemoryFormats{"contiguous_format", "preserve_format", "channels_last",
                                                    "channels_last_3d"};

[[noreturn]] void wrong_value(const std::string& where, const Json& value, const std::string& wanted) {
  json::refuse(value, where, wanted, ErrorKind::kProtocol);
}

double float_from_text(const Json& value, const std::string& where) {
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  wrong_value(where, value, R"("inf", "-inf" or "nan")");
}

double float_from(const Json& value, const std::string& where) {
  if (value.is_string()) return float_from_text(value, where);
  if (!value.is_number()) wrong_value(where, value, "a number");
  return value.get<double>();
}

// The integer `value`, whose magnitude is below kIntegerBound. Errors name `where`.
std::int64_t integer_from(const Json& value, const std::string& where) {
  const bool small = value.is_number_unsigned()
                         ? value.get<std::uint64_t>() < std::uint64_t{kIntegerBound}
                         : value.is_number_integer() && value.get<std::int64_t>() > -kIntegerBound;
  if (!small) wrong_value(where, value, "an integer whose magnitude is less than 2^40");
  return value.get<std::int64_t>();
}

// The index of a tensor, which the graph may lack.
int tensor_from(const Json& value, const std::string& where) {
  const std::int64_t id = integer_from(value, where);
  if (id < 0 || id >= static_cast<std::int64_t>(kMaxTensors)) wrong_value(where, value, "the index of a tensor");
  return static_cast<int>(id);
}

// Applies `read` to each entry of the list `value`.
template <typename List, typename Read>
List list_from(const Json& value, const std::string& where, Read read) {
  if (!value.is_array()) wrong_value(where, value, "a list");
  if (value.size() > kMaxArguments) {
    throw Error(ErrorKind::kProtocol,
                where + " has " + std::to_string(value.size()) + " entries: at most " + std::to_string(kMaxArguments));
  }
  List list;
  for (const Json& entry : value) list.push_back(read(entry, where));
  return list;
}

std::optional<int> optional_tensor_from(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  return tensor_from(value, where);
}

std::string text_from(const Json& value, const std::string& where) {
  if (!value.is_string()) wrong_value(where, value, "a string");
  return value.get<std::string>();
}

bool boolean_from(const Json& value, const std::string& where) {
  if (!value.is_boolean()) wrong_value(where, value, "true or false");
  return value.get<bool>();
}

Dtype dtype_from(const Json& value, const std::string& where) {
  const std::optional<Dtype> dtype = value.is_string() ? try_dtype(value.get<std::string>()) : std::nullopt;
  if (!dtype) wrong_value(where, value, "the name of an element type, such as \"float32\"");
  return *dtype;
}

MemoryFormat memory_format_from(const Json& value, const std::string& where) {
  for (std::size_t i = 0; i < kMemoryFormats.size(); ++i) {
    if (value == kMemoryFormats[i]) return static_cast<MemoryFormat>(i);
  }
  wrong_value(where, value, "the name of a memory format, such as \"contiguous_format\"");
}

// Reads {"ints": [1, 2]} and the like: an object whose one key names the type of the value.
Argument tagged_from(const Json& value, const std::string& where) {
  if (value.size() != 1) wrong_value(where, value, "an object with one key that names its type");
  const std::string& tag = value.begin().key();
  const Json& content = value.begin().value();
  if (tag == "tensor") return TensorId{tensor_from(content, where)};
  if (tag == "tensors") {
    return TensorIds{list_from<std::vector<std::optional<int>>>(content, where, optional_tensor_from)};
  }
  if (tag == "ints") return list_from<Ints>(content, where, integer_from);
  if (tag == "floats") return list_from<Floats>(content, where, float_from);
  if (tag == "bools") return list_from<Bools>(content, where, boolean_from);
  if (tag == "float") return float_from_text(content, where);
  if (tag == "text") return Text{text_from(content, where)};
  if (tag == "dtype") return dtype_from(content, where);
  if (tag == "memory_format") return memory_format_from(content, where);
  if (tag == "layout" && content == "strided") return Layout::kStrided;
  if (tag == "device" && content == true) return RunnersDevice{};
  wrong_value(where, value, "one of the forms that docs/regions.md lists");
}

// An argument of a node (docs/regions.md lists the forms).
Argument argument_from(const Json& value, const std::string& where) {
  if (value.is_null()) return std::monostate{};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number()) return integer_from(value, where);
  if (value.is_object()) return tagged_from(value, where);
  wrong_value(where, value, "a value, or an object with one key that names its type");
}

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

}  // namespace atl::infer
