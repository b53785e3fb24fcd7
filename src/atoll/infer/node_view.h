// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/infer/graph.h"

namespace atl::infer {

/// One node of a graph as a rule reads it. Operands are the tensors among its arguments, counted in order. An argument
/// that is missing or of another type than requested is Error(kProtocol) that names the node and the argument. Borrows
/// the graph.
class NodeView {
 public:
  NodeView(const Graph& graph, const Node& node);

  const Graph& graph() const noexcept { return graph_; }
  const Node& node() const noexcept { return node_; }
  const std::string& overload() const noexcept { return node_.overload; }

  std::size_t operands() const noexcept { return operands_.size(); }
  int tensor_of(std::size_t operand) const;
  const Tensor& operand(std::size_t operand) const;
  const Shape& shape(std::size_t operand) const { return this->operand(operand).shape; }
  int rank(std::size_t operand) const { return static_cast<int>(shape(operand).size()); }
  /// The rows of an operand along `dim`.
  std::int64_t rows(std::size_t operand, int dim) const;
  /// The index of the operand that is argument `argument`; none for null and for a number in place of a tensor.
  std::optional<std::size_t> operand_at(std::size_t argument) const;
  /// The operands in the list of tensors at argument `argument`: the index of the first, and their number.
  std::pair<std::size_t, std::size_t> operand_list_at(std::size_t argument) const;

  const Tensor& output() const;
  const Shape& output_shape() const { return output().shape; }
  int output_rank() const { return static_cast<int>(output().shape.size()); }
  std::int64_t output_rows(int dim) const;
  /// Returns whether a node or the caller uses output `index`.
  bool uses_output(std::size_t index) const;

  std::size_t arguments() const noexcept { return node_.args.size(); }
  const Argument& argument(std::size_t argument) const;
  bool is_null(std::size_t argument) const;
  bool boolean(std::size_t argument) const;
  std::int64_t integer(std::size_t argument) const;
  std::int64_t integer_or(std::size_t argument, std::int64_t fallback) const;  ///< `fallback` if it is null
  double number(std::size_t argument) const;                                   ///< a float, an integer or a boolean
  Ints integers(std::size_t argument) const;  ///< a single integer counts as a list of one
  Floats numbers(std::size_t argument) const;
  std::string text(std::size_t argument) const;
  /// The dimension from 0 that `dim` means for a tensor of `rank` dimensions: -1 is the last one.
  int normal(std::int64_t dim, int rank) const;
  int dim(std::size_t argument, int rank) const { return normal(integer(argument), rank); }
  std::vector<int> dims(std::size_t argument, int rank) const;

  /// "aten::relu, which makes tensor 7"
  std::string name() const;

 private:
  [[noreturn]] void wrong(std::size_t argument, const std::string& wanted) const;

  const Graph& graph_;
  const Node& node_;
  std::vector<int> operands_;
};

}  // namespace atl::infer
