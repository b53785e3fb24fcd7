// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/admit.h"

#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/operators/operators.h"

namespace atl::infer::safety {
namespace {

using operators::bytes_in;
using operators::CallView;
using operators::count_of;
using operators::Made;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kRefused, what); }

const Tensor& tensor_at(const Graph& graph, int id) { return graph.tensors.at(static_cast<std::size_t>(id)); }

std::string mebibytes(double bytes) { return std::to_string(static_cast<std::int64_t>(bytes / (1 << 20))) + " MiB"; }

Made made_by(const std::string& where, const Node& node, const std::vector<Argument>& args,
             std::span<const Tensor> operands, const Limits& limits) {
  const auto found = operators::table().find(node.name());
  if (found == operators::table().end()) refuse(where + ": this operator is not on the server's list (docs/safety.md)");
  const CallView view(where, args, operands, found->second.takes_empty);
  Made made = found->second.admit(view);
  double bytes = made.workspace_bytes;
  for (const Tensor& output : made.outputs) bytes += bytes_in(output);
  if (!(bytes <= static_cast<double>(limits.node_bytes))) {
    view.refuse("it may need " + mebibytes(bytes) + " of memory: at most " +
                mebibytes(static_cast<double>(limits.node_bytes)) + " are allowed for one node");
  }
  return made;
}

// Of a part, only types and numbers of dimensions are declared.
void require_declared(const std::string& where, const Graph& graph, const Node& node, const Made& made, bool is_part) {
  if (node.outputs.size() != made.outputs.size() || node.is_list != made.is_list) {
    refuse(where + ": it makes " + std::to_string(made.outputs.size()) +
           (made.is_list ? " tensors as a list" : " tensors") + ", but the graph declares other outputs");
  }
  for (std::size_t i = 0; i < made.outputs.size(); ++i) {
    const Tensor& declared = tensor_at(graph, node.outputs[i]);
    const Tensor& found = made.outputs[i];
    const bool fits =
        is_part ? found.dtype == declared.dtype && found.shape.size() == declared.shape.size() : found == declared;
    if (!fits) {
      refuse(where + ": output " + std::to_string(i) + " is " + to_string(found) + ", but the graph declares " +
             to_string(declared) + (is_part ? " for the whole" : ""));
    }
  }
}

// Checks a tensor that is not made by a node.
void require_small(const Graph& graph, int id, const std::string& what, std::int64_t most_bytes) {
  const Tensor& tensor = tensor_at(graph, id);
  const double bytes = bytes_in(tensor);
  if (!(count_of(tensor.shape) <= static_cast<double>(kMaxElements) && bytes <= static_cast<double>(most_bytes))) {
    refuse(what + " has " + mebibytes(bytes) + ": at most " + mebibytes(static_cast<double>(most_bytes)) +
           " and 2^31 elements");
  }
}

// The search visits every tensor for each dimension of each input. Each operand of a node costs the rules' few hundred
// steps, and nodes with several outputs visit all uses of tensors.
void require_searchable(const Graph& graph, const Limits& limits) {
  constexpr double kRule = 250;
  double dims = 0;
  for (const int input : graph.inputs) dims += static_cast<double>(tensor_at(graph, input).shape.size());
  double several = 0;
  double operands = 0;
  for (const Node& node : graph.nodes) {
    operands += static_cast<double>(operands_of(node).size());
    if (node.outputs.size() > 1) ++several;
  }
  const double steps = dims * (static_cast<double>(graph.tensors.size()) + operands * (kRule + several));
  if (!(steps <= limits.searches)) {
    refuse("the graph's inputs have " + std::to_string(static_cast<std::int64_t>(dims)) +
           " dimensions, its nodes take " + std::to_string(static_cast<std::int64_t>(operands)) + " tensors and " +
           std::to_string(static_cast<std::int64_t>(several)) +
           " of them make several: the search for its divisions takes " +
           std::to_string(static_cast<std::int64_t>(steps / 1e6)) + " million steps: at most " +
           std::to_string(static_cast<std::int64_t>(limits.searches / 1e6)) + " million are allowed");
  }
}

void require_within(const Graph& graph, const Limits& limits) {
  if (static_cast<std::int64_t>(graph.nodes.size()) > limits.nodes) {
    refuse("the graph has " + std::to_string(graph.nodes.size()) + " nodes: at most " + std::to_string(limits.nodes));
  }
  if (static_cast<std::int64_t>(graph.outputs.size()) > limits.outputs) {
    refuse("the graph has " + std::to_string(graph.outputs.size()) + " outputs: at most " +
           std::to_string(limits.outputs));
  }
  require_searchable(graph, limits);
  for (const int input : graph.inputs) {
    require_small(graph, input, "input tensor " + std::to_string(input), limits.node_bytes);
  }
  double bytes = 0;
  for (const Weight& weight : graph.weights) {
    require_small(graph, weight.tensor, "the weight \"" + weight.name.substr(0, 80) + "\"", limits.weight_bytes);
    bytes += bytes_in(tensor_at(graph, weight.tensor));
  }
  if (!(bytes <= static_cast<double>(limits.weight_bytes))) {
    refuse("the weights have " + mebibytes(bytes) + ": at most " + mebibytes(static_cast<double>(limits.weight_bytes)));
  }
}

}  // namespace

void admit(const Graph& graph, const Limits& limits) {
  require_within(graph, limits);
  double operations = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::string where = described(graph, node);
    std::vector<Tensor> operands;
    for (const int id : operands_of(node)) operands.push_back(tensor_at(graph, id));
    const Made made = made_by(where, node, node.args, operands, limits);
    require_declared(where, graph, node, made, false);
    operations += made.operations;
    if (!(operations <= limits.operations)) {
      refuse(where + ": up to this node the graph needs more than the " +
             std::to_string(static_cast<std::int64_t>(limits.operations / 1e6)) +
             " million operations allowed for one run");
    }
  }
}

std::vector<Tensor> admit_call(const Graph& graph, const Node& node, std::span<const Tensor> operands,
                               std::span<const Change> changes, const Limits& limits) {
  const std::string where = "a part of " + described(graph, node);
  std::vector<Argument> args = node.args;
  for (const Change& change : changes) {
    const bool tensor =
        std::holds_alternative<TensorId>(change.value) || std::holds_alternative<TensorIds>(change.value);
    if (change.argument >= args.size() || tensor) {
      throw Error(ErrorKind::kInvalidArgument,
                  where + ": argument " + std::to_string(change.argument) + " cannot be changed");
    }
    args[change.argument] = change.value;
  }
  Made made = made_by(where, node, args, operands, limits);
  if (!node.outputs.empty()) require_declared(where, graph, node, made, true);
  return std::move(made.outputs);
}

std::vector<std::string> admitted_operators() {
  std::vector<std::string> names;
  for (const auto& [name, known] : operators::table()) names.push_back(name);
  return names;
}

}  // namespace atl::infer::safety
