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

NodeView::NodeView(const Graph& graph, const Node& node)
    : ArgumentReader(node.args, true), graph_(graph), node_(node), operands_(operands_of(node)) {}

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
  const auto takes_it = [id](const Argument& argument) {
    if (const auto* tensor = std::get_if<TensorId>(&argument)) return tensor->id == id;
    const auto* list = std::get_if<TensorIds>(&argument);
    return list != nullptr && std::find(list->ids.begin(), list->ids.end(), id) != list->ids.end();
  };
  return std::any_of(graph_.outputs.begin(), graph_.outputs.end(), takes_it) ||
         std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                     [&](const Node& node) { return std::any_of(node.args.begin(), node.args.end(), takes_it); });
}

std::string NodeView::name() const {
  if (node_.outputs.empty()) return node_.name() + ", which makes no tensor";
  return node_.name() + ", which makes tensor " + std::to_string(node_.outputs.front());
}

}  // namespace atl::infer
