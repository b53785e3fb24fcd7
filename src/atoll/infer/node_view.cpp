// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/node_view.h"

#include <algorithm>

#include "atoll/infer/malformed.h"

namespace atl::infer {
namespace {

const Tensor& tensor_at(const Graph& graph, int id, const NodeView& view) {
  if (id < 0 || static_cast<std::size_t>(id) >= graph.tensors.size()) {
    malformed(view.name() + ", has no tensor " + std::to_string(id));
  }
  return graph.tensors[static_cast<std::size_t>(id)];
}

}  // namespace

NodeView::NodeView(const Graph& graph, const Node& node) : graph_(graph), node_(node), operands_(operands_of(node)) {}

int NodeView::tensor_of(std::size_t operand) const {
  if (operand >= operands_.size()) {
    malformed(name() + ", lacks operand " + std::to_string(operand) + ": it has " + std::to_string(operands_.size()));
  }
  return operands_[operand];
}

const Tensor& NodeView::operand(std::size_t operand) const { return tensor_at(graph_, tensor_of(operand), *this); }

std::int64_t NodeView::rows(std::size_t operand, int dim) const {
  const Shape& sizes = shape(operand);
  if (dim < 0 || static_cast<std::size_t>(dim) >= sizes.size()) {
    malformed(name() + ", has operand " + std::to_string(operand) + " without dimension " + std::to_string(dim));
  }
  return sizes[static_cast<std::size_t>(dim)];
}

std::optional<std::size_t> NodeView::operand_at(std::size_t argument) const {
  if (!std::holds_alternative<TensorId>(this->argument(argument))) return std::nullopt;
  return operand_list_at(argument).first;
}

std::pair<std::size_t, std::size_t> NodeView::operand_list_at(std::size_t argument) const {
  std::size_t first = 0;
  for (std::size_t i = 0; i <= argument; ++i) {
    std::size_t count = 0;
    if (std::holds_alternative<TensorId>(this->argument(i))) count = 1;
    if (const auto* list = std::get_if<TensorIds>(&node_.args[i])) {
      count = static_cast<std::size_t>(
          std::count_if(list->ids.begin(), list->ids.end(), [](const auto& id) { return id.has_value(); }));
    }
    if (i == argument) return {first, count};
    first += count;
  }
  return {first, 0};
}

const Tensor& NodeView::output() const {
  if (node_.outputs.empty()) malformed(node_.name() + " has no output");
  return tensor_at(graph_, node_.outputs.front(), *this);
}

std::int64_t NodeView::output_rows(int dim) const {
  const Shape& sizes = output_shape();
  if (dim < 0 || static_cast<std::size_t>(dim) >= sizes.size()) {
    malformed(name() + ", has no dimension " + std::to_string(dim));
  }
  return sizes[static_cast<std::size_t>(dim)];
}

bool NodeView::uses_output(std::size_t index) const {
  if (index >= node_.outputs.size()) return false;
  const int id = node_.outputs[index];
  const auto is_it = [&](const Argument& output) { return output == Argument(TensorId{id}); };
  if (std::any_of(graph_.outputs.begin(), graph_.outputs.end(), is_it)) return true;
  const auto takes_it = [id](const Argument& argument) {
    if (const auto* tensor = std::get_if<TensorId>(&argument)) return tensor->id == id;
    const auto* list = std::get_if<TensorIds>(&argument);
    return list != nullptr && std::find(list->ids.begin(), list->ids.end(), id) != list->ids.end();
  };
  return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                     [&](const Node& node) { return std::any_of(node.args.begin(), node.args.end(), takes_it); });
}

const Argument& NodeView::argument(std::size_t argument) const {
  if (argument >= node_.args.size()) {
    malformed(name() + ", lacks argument " + std::to_string(argument) + ": it has " +
              std::to_string(node_.args.size()));
  }
  return node_.args[argument];
}

bool NodeView::is_null(std::size_t argument) const {
  return std::holds_alternative<std::monostate>(this->argument(argument));
}

bool NodeView::boolean(std::size_t argument) const {
  const auto* value = std::get_if<bool>(&this->argument(argument));
  if (value == nullptr) wrong(argument, "true or false");
  return *value;
}

std::int64_t NodeView::integer(std::size_t argument) const {
  const auto* value = std::get_if<std::int64_t>(&this->argument(argument));
  if (value == nullptr) wrong(argument, "an integer");
  return *value;
}

std::int64_t NodeView::integer_or(std::size_t argument, std::int64_t fallback) const {
  return is_null(argument) ? fallback : integer(argument);
}

double NodeView::number(std::size_t argument) const {
  if (const auto* value = std::get_if<double>(&this->argument(argument))) return *value;
  if (const auto* value = std::get_if<bool>(&this->argument(argument))) return *value ? 1 : 0;
  return static_cast<double>(integer(argument));
}

Ints NodeView::integers(std::size_t argument) const {
  if (const auto* value = std::get_if<Ints>(&this->argument(argument))) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&this->argument(argument))) return {*value};
  wrong(argument, "a list of integers");
}

Floats NodeView::numbers(std::size_t argument) const {
  const auto* value = std::get_if<Floats>(&this->argument(argument));
  if (value == nullptr) wrong(argument, "a list of floats");
  return *value;
}

std::string NodeView::text(std::size_t argument) const {
  const auto* value = std::get_if<Text>(&this->argument(argument));
  if (value == nullptr) wrong(argument, "a string");
  return value->value;
}

int NodeView::normal(std::int64_t dim, int rank) const {
  const std::int64_t wrapped = dim < 0 ? dim + rank : dim;
  if (wrapped < 0 || wrapped >= rank) {
    malformed(name() + ", has dimension " + std::to_string(dim) + " for a tensor of " + std::to_string(rank) +
              " dimensions");
  }
  return static_cast<int>(wrapped);
}

std::vector<int> NodeView::dims(std::size_t argument, int rank) const {
  std::vector<int> dims;
  for (const std::int64_t dim : integers(argument)) dims.push_back(normal(dim, rank));
  return dims;
}

std::string NodeView::name() const {
  if (node_.outputs.empty()) return node_.name() + ", which makes no tensor";
  return node_.name() + ", which makes tensor " + std::to_string(node_.outputs.front());
}

void NodeView::wrong(std::size_t argument, const std::string& wanted) const {
  malformed(name() + ", has argument " + std::to_string(argument) + " of the wrong type: it must be " + wanted);
}

}  // namespace atl::infer
