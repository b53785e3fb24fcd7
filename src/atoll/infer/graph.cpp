// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph.h"

#include <algorithm>
#include <array>
#include <functional>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

struct DtypeFacts {
  const char* name;
  std::int64_t bytes;
  bool floating;
};

constexpr std::array<DtypeFacts, 10> kDtypes{{{"float16", 2, true},
                                              {"bfloat16", 2, true},
                                              {"float32", 4, true},
                                              {"float64", 8, true},
                                              {"int8", 1, false},
                                              {"int16", 2, false},
                                              {"int32", 4, false},
                                              {"int64", 8, false},
                                              {"uint8", 1, false},
                                              {"bool", 1, false}}};

const DtypeFacts& facts(Dtype dtype) noexcept { return kDtypes[static_cast<std::size_t>(dtype)]; }

[[noreturn]] void broken(const std::string& what) { throw Error(ErrorKind::kProtocol, "invalid graph: " + what); }

bool within_bound(std::int64_t value) noexcept { return value > -kIntegerBound && value < kIntegerBound; }

void check_tensor(const Tensor& tensor, std::size_t id) {
  const std::string name = "tensor " + std::to_string(id);
  if (tensor.shape.size() > kMaxDims) {
    broken(name + " has " + std::to_string(tensor.shape.size()) + " dimensions: at most " + std::to_string(kMaxDims));
  }
  std::int64_t elements = 1;  // an empty dimension counts as 1, so that the others stay bounded
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || size >= kIntegerBound) broken(name + " has a dimension of " + std::to_string(size));
    if (std::max<std::int64_t>(size, 1) > (kIntegerBound - 1) / elements) broken(name + " has more than 2^40 elements");
    elements *= std::max<std::int64_t>(size, 1);
  }
}

bool is_word(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

void check_name(const Node& node, const std::string& where) {
  const std::size_t colons = node.op.find("::");
  const bool good = colons != std::string::npos && colons > 0 && colons + 2 < node.op.size() &&
                    is_word(node.op.substr(0, colons)) && is_word(node.op.substr(colons + 2)) && is_word(node.overload);
  if (!good || node.op.size() + node.overload.size() > kMaxNameBytes) {
    broken(where + " has an op that is not the name of an operator, such as aten::relu");
  }
}

std::size_t entries_of(const Argument& argument) {
  if (const auto* ids = std::get_if<TensorIds>(&argument)) return 1 + ids->ids.size();
  if (const auto* ints = std::get_if<Ints>(&argument)) return 1 + ints->size();
  if (const auto* floats = std::get_if<Floats>(&argument)) return 1 + floats->size();
  if (const auto* bools = std::get_if<Bools>(&argument)) return 1 + bools->size();
  return 1;
}

void check_values(const Argument& argument, const std::string& where) {
  const auto* integer = std::get_if<std::int64_t>(&argument);
  if (integer != nullptr && !within_bound(*integer)) {
    broken(where + " is " + std::to_string(*integer) + ": integers must be below 2^40");
  }
  if (const auto* ints = std::get_if<Ints>(&argument)) {
    for (const std::int64_t value : *ints) {
      if (!within_bound(value)) broken(where + " has " + std::to_string(value) + ": integers must be below 2^40");
    }
  }
  const auto* text = std::get_if<Text>(&argument);
  if (text != nullptr && text->value.size() > kMaxTextBytes) broken(where + " is a string of more than 1 MiB");
}

// Tracks which tensors have been made so far.
class Made {
 public:
  explicit Made(std::size_t tensors) : made_(tensors, false) {}

  void make(int id, const std::string& by) {
    if (!knows(id)) broken(by + " is tensor " + std::to_string(id) + ", but there are " + std::to_string(made_.size()));
    if (made_[static_cast<std::size_t>(id)]) broken(by + " is tensor " + std::to_string(id) + ", which is made twice");
    made_[static_cast<std::size_t>(id)] = true;
  }
  void use(int id, const std::string& by) const {
    if (!knows(id))
      broken(by + " uses tensor " + std::to_string(id) + ", but there are " + std::to_string(made_.size()));
    if (!made_[static_cast<std::size_t>(id)]) {
      broken(by + " uses tensor " + std::to_string(id) + " before it is made");
    }
  }
  void complete() const {
    for (std::size_t id = 0; id < made_.size(); ++id) {
      if (!made_[id])
        broken("tensor " + std::to_string(id) + " is neither an input nor a weight nor an output of a node");
    }
  }

 private:
  bool knows(int id) const { return id >= 0 && static_cast<std::size_t>(id) < made_.size(); }
  std::vector<bool> made_;
};

void check_node(const Node& node, std::size_t index, Made& made) {
  std::string where = "node " + std::to_string(index);
  check_name(node, where);
  where += " (" + node.name() + ")";
  if (node.module.size() > kMaxNameBytes) {
    broken(where + " has a module of " + std::to_string(node.module.size()) + " characters: at most 1000");
  }
  const auto is_control = [](char letter) { return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f; };
  if (std::any_of(node.module.begin(), node.module.end(), is_control)) {
    broken(where + " has a module with control characters: give its path, such as layer1.0");
  }
  std::size_t entries = node.outputs.size();
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    entries += entries_of(node.args[i]);
    check_values(node.args[i], where + "'s argument " + std::to_string(i));
  }
  if (entries > kMaxArguments) broken(where + " has more than " + std::to_string(kMaxArguments) + " arguments");
  for (const int id : operands_of(node)) made.use(id, where);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    made.make(node.outputs[i], where + "'s output " + std::to_string(i));
  }
}

}  // namespace

const char* to_string(Dtype dtype) noexcept { return facts(dtype).name; }

std::optional<Dtype> try_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (name == kDtypes[i].name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::int64_t bytes_of(Dtype dtype) noexcept { return facts(dtype).bytes; }

bool is_floating(Dtype dtype) noexcept { return facts(dtype).floating; }

std::int64_t Tensor::elements() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string to_string(const Tensor& tensor) {
  std::string sizes;
  for (const std::int64_t size : tensor.shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return std::string(to_string(tensor.dtype)) + " [" + sizes + "]";
}

std::string described(const Graph& graph, const Node& node) {
  const std::string name = node.name().substr(0, 80) + (node.module.empty() ? "" : " in " + node.module.substr(0, 200));
  const Node* const first = graph.nodes.data();
  const bool is_its = !std::less<>()(&node, first) && std::less<>()(&node, first + graph.nodes.size());
  return is_its ? "node " + std::to_string(&node - first) + " (" + name + ")" : name;
}

std::vector<int> operands_of(const Node& node) {
  std::vector<int> operands;
  for (const Argument& argument : node.args) {
    if (const auto* tensor = std::get_if<TensorId>(&argument)) operands.push_back(tensor->id);
    if (const auto* list = std::get_if<TensorIds>(&argument)) {
      for (const std::optional<int>& id : list->ids) {
        if (id) operands.push_back(*id);
      }
    }
  }
  return operands;
}

void check(const Graph& graph) {
  if (graph.tensors.size() > kMaxTensors) broken("it has more than " + std::to_string(kMaxTensors) + " tensors");
  if (graph.nodes.size() > kMaxNodes) broken("it has more than " + std::to_string(kMaxNodes) + " nodes");
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) check_tensor(graph.tensors[i], i);
  Made made(graph.tensors.size());
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) made.make(graph.inputs[i], "input " + std::to_string(i));
  for (const Weight& weight : graph.weights) {
    if (weight.name.empty() || weight.name.size() > kMaxNameBytes) {
      broken("a weight's name has " + std::to_string(weight.name.size()) + " characters: give 1 to 1000");
    }
    made.make(weight.tensor, "the weight \"" + weight.name + "\"");
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) check_node(graph.nodes[i], i, made);
  made.complete();
  if (graph.outputs.size() > kMaxTensors) broken("it has " + std::to_string(graph.outputs.size()) + " outputs");
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::string where = "output " + std::to_string(i);
    check_values(graph.outputs[i], where);
    if (const auto* tensor = std::get_if<TensorId>(&graph.outputs[i])) made.use(tensor->id, where);
    if (std::holds_alternative<TensorIds>(graph.outputs[i]))
      broken(where + " is a list of tensors: give each tensor an output of its own");
  }
  if (std::max(graph.input_structure.size(), graph.output_structure.size()) > kMaxTextBytes) {
    broken("its structure is a string of more than 1 MiB");
  }
}

}  // namespace atl::infer
