// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/infer/argument_reader.h"
#include "atoll/infer/graph.h"

namespace atl::infer {

/// One node of a graph as a rule reads it: its arguments, its operands and its output. Borrows the graph.
class NodeView final : public ArgumentReader {
 public:
  NodeView(const Graph& graph, const Node& node);

  /// "aten::relu, which makes tensor 7"
  std::string name() const override;
  const Graph& graph() const noexcept { return graph_; }
  const Node& node() const noexcept { return node_; }
  const std::string& overload() const noexcept { return node_.overload; }

  std::size_t operands() const noexcept override { return operands_.size(); }
  const Tensor& operand(std::size_t operand) const override;
  int tensor_of(std::size_t operand) const;
  const Shape& shape(std::size_t operand) const { return this->operand(operand).shape; }
  int rank(std::size_t operand) const { return static_cast<int>(shape(operand).size()); }
  /// The rows of an operand along `dim`.
  std::int64_t rows(std::size_t operand, int dim) const;

  const Tensor& output() const;
  const Shape& output_shape() const { return output().shape; }
  int output_rank() const { return static_cast<int>(output().shape.size()); }
  std::int64_t output_rows(int dim) const;
  /// Returns whether a node or the caller uses output `index`.
  bool uses_output(std::size_t index) const;

 private:
  const Graph& graph_;
  const Node& node_;
  std::vector<int> operands_;
};

}  // namespace atl::infer
