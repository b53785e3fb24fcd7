// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atoll/infer/run/costs.h"
#include "atoll/infer/run/executor.h"
#include "tests/infer/fake_runner.h"
#include "tests/infer/infer_cases.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::infer::test {

/// Graphs of what FakeRunner computes: branches, joins, heads, constants, several inputs and outputs.
class AnyGraph {
 public:
  AnyGraph(Dice& dice, std::int64_t most) : dice_(dice) {
    image_ = builder_.input({1, dice.integer(1, 3), dice.chance(0.05) ? 1 : dice.integer(2, 24)});
    tensors_ = {image_};
    if (dice.chance(0.3)) tensors_.push_back(builder_.input({1, dice.integer(1, 2), dice.integer(1, 8)}));
    if (dice.chance(0.3)) add_constant();
    for (std::int64_t i = dice.integer(1, most); i > 0; --i) add_node();
    builder_.output(tensors_.back());
    while (dice.chance(0.3)) builder_.output(any_tensor());
  }
  const Graph& graph() const { return builder_.graph(); }
  int image() const { return image_; }

 private:
  const Shape& shape(int tensor) const { return graph().tensors[static_cast<std::size_t>(tensor)].shape; }
  int any_tensor() {
    if (dice_.chance(0.5)) return tensors_.back();
    return tensors_[static_cast<std::size_t>(dice_.integer(0, static_cast<std::int64_t>(tensors_.size()) - 1))];
  }

  void add_constant() {
    const Shape sizes{1, dice_.integer(1, 3), dice_.integer(2, 6)};
    tensors_.push_back(builder_.call("aten::relu", {TensorId{builder_.weight(sizes)}}, sizes));
  }

  void add_node() {
    const int self = any_tensor();
    switch (dice_.integer(0, 9)) {
      case 0: tensors_.push_back(builder_.call("aten::relu", {TensorId{self}}, shape(self))); break;
      case 1: add_sum(self); break;
      case 2: add_mean(self); break;
      case 3: add_slice(self); break;
      case 4: tensors_.push_back(builder_.call("aten::flip", {TensorId{self}, Ints{2}}, shape(self))); break;
      case 5: add_split(self); break;
      case 6: add_cat(self); break;
      case 7: add_softmax(self); break;
      default: add_convolution(self); break;
    }
  }

  // With the same shape, or with one row.
  void add_sum(int self) {
    std::vector<int> others{builder_.weight({shape(self)[1], 1})};
    for (const int tensor : tensors_) {
      const Shape& sizes = shape(tensor);
      if (sizes[1] == shape(self)[1] && (sizes[2] == shape(self)[2] || sizes[2] == 1)) others.push_back(tensor);
    }
    const int other = others[static_cast<std::size_t>(dice_.integer(0, static_cast<std::int64_t>(others.size()) - 1))];
    tensors_.push_back(builder_.call("aten::add.Tensor", {TensorId{self}, TensorId{other}, 1}, shape(self)));
  }

  void add_mean(int self) {
    tensors_.push_back(builder_.call("aten::mean.dim", {TensorId{self}, Ints{2}, true, {}}, {1, shape(self)[1], 1}));
  }

  // Over the rows, or over channels.
  void add_softmax(int self) {
    const std::int64_t dim = dice_.chance(0.7) ? 2 : 1;
    tensors_.push_back(builder_.call("aten::softmax.int", {TensorId{self}, dim, {}}, shape(self)));
  }

  void add_slice(int self) {
    const std::int64_t rows = shape(self)[2];
    const std::int64_t begin = dice_.integer(0, rows - 1);
    const std::int64_t step = dice_.integer(1, 3);
    const bool to_end = dice_.chance(0.3);
    const std::int64_t end = to_end ? rows : dice_.integer(begin + 1, rows);
    tensors_.push_back(builder_.call("aten::slice.Tensor",
                                     {TensorId{self}, 2, begin, to_end ? Argument{} : Argument{end}, step},
                                     {1, shape(self)[1], (end - begin + step - 1) / step}));
  }

  // Into halves of the channels, one of which may be unused; or of the rows, which is global.
  void add_split(int self) {
    const std::int64_t dim = dice_.chance(0.7) ? 1 : 2;
    const auto place = static_cast<std::size_t>(dim);
    const std::int64_t rows = shape(self)[place];
    const std::int64_t half = (rows + 1) / 2;
    std::vector<Shape> shapes{shape(self)};
    shapes[0][place] = half;
    if (half < rows) {
      shapes.push_back(shape(self));
      shapes[1][place] = rows - half;
    }
    const std::vector<int> parts = builder_.calls("aten::split.Tensor", {TensorId{self}, half, dim}, shapes);
    builder_.be_list();
    for (const int part : parts) {
      if (part == parts.front() || dice_.chance(0.7)) tensors_.push_back(part);
    }
  }

  void add_cat(int self) {
    const std::int64_t dim = dice_.integer(1, 2);
    const auto place = static_cast<std::size_t>(dim);
    TensorIds list{{self}};
    Shape sizes = shape(self);
    for (const int tensor : tensors_) {
      const bool fits = shape(tensor)[3 - place] == sizes[3 - place] && sizes[place] + shape(tensor)[place] < 40;
      if (!fits || !dice_.chance(0.4)) continue;
      list.ids.push_back(tensor);
      sizes[place] += shape(tensor)[place];
    }
    tensors_.push_back(builder_.call("aten::cat", {list, dim}, sizes));
  }

  void add_convolution(int self) {
    const std::int64_t rows = shape(self)[2];
    const std::int64_t kernel = dice_.integer(1, 3);
    const std::int64_t dilation = dice_.integer(1, 2);
    const std::int64_t padding = dice_.integer(0, 2);
    const std::int64_t stride = dice_.integer(1, 2);
    const std::int64_t reach = rows + 2 * padding - dilation * (kernel - 1) - 1;
    if (reach < 0) return add_sum(self);
    const std::int64_t channels = dice_.integer(1, 3);
    const int weight = builder_.weight({channels, shape(self)[1], kernel});
    const Argument bias = dice_.chance(0.5) ? Argument{TensorId{builder_.weight({channels})}} : Argument{};
    tensors_.push_back(builder_.call(
        "aten::conv1d", {TensorId{self}, TensorId{weight}, bias, Ints{stride}, Ints{padding}, Ints{dilation}, 1},
        {1, channels, reach / stride + 1}));
  }

  Dice& dice_;
  Builder builder_;
  int image_ = 0;
  std::vector<int> tensors_;
};

inline Value any_values(Dice& dice, const Tensor& type) {
  std::vector<double> data(static_cast<std::size_t>(type.elements()));
  for (double& value : data) value = dice.real(-1, 1);
  return plain_value(type.shape, std::move(data));
}

/// A graph with weights and inputs, loaded, and its tensors when its nodes are called one after the other.
struct Case {
  Graph graph;
  int image = 0;
  std::shared_ptr<FakeRunner> runner = std::make_shared<FakeRunner>();
  std::unique_ptr<LoadedModel> model;
  std::map<int, Value> inputs;
  std::vector<Value> tensors;  ///< all of them

  Case(Dice& dice, std::int64_t most) : Case(dice, AnyGraph(dice, most)) {}
  Case(Dice& dice, const AnyGraph& made) : Case(dice, made.graph(), made.image()) {}
  Case(Dice& dice, Graph of, int its_image) : graph(std::move(of)), image(its_image), tensors(graph.tensors.size()) {
    std::map<std::string, HostBytes> weights;
    for (const Weight& weight : graph.weights) {
      Value& value = tensors[static_cast<std::size_t>(weight.tensor)];
      value = any_values(dice, graph.tensors[static_cast<std::size_t>(weight.tensor)]);
      weights[weight.name] = runner->to_host(value);
    }
    for (const int input : graph.inputs) {
      inputs[input] = any_values(dice, graph.tensors[static_cast<std::size_t>(input)]);
      tensors[static_cast<std::size_t>(input)] = inputs[input];
    }
    for (const Node& node : graph.nodes) {
      std::vector<Value> operands;
      for (const int tensor : operands_of(node)) operands.push_back(tensors[static_cast<std::size_t>(tensor)]);
      const std::vector<Value> parts = runner->run(*runner->prepare(graph, node), operands, {});
      for (std::size_t i = 0; i < parts.size(); ++i) tensors[static_cast<std::size_t>(node.outputs[i])] = parts[i];
    }
    model = std::make_unique<LoadedModel>(graph, weights, runner);
  }

  void set_inputs(Inference& inference) const {
    for (const auto& [tensor, value] : inputs) inference.set_input(tensor, value);
  }
  /// Bit for bit, unless sums of parts were added up in another order.
  void expect_outputs(Inference& inference, bool is_exact = true) const {
    for (const int tensor : outputs_of(graph)) {
      const Value found = inference.whole(tensor);
      const Plain& wanted = plain(tensors[static_cast<std::size_t>(tensor)]);
      ASSERT_EQ(plain(found).shape, wanted.shape) << "tensor " << tensor;
      if (is_exact) {
        ASSERT_EQ(plain(found).data, wanted.data) << "tensor " << tensor;
        continue;
      }
      double largest = 1;
      for (const double value : wanted.data) largest = std::max(largest, std::abs(value));
      for (std::size_t i = 0; i < wanted.data.size(); ++i) {
        ASSERT_NEAR(plain(found).data[i], wanted.data[i], 1e-9 * largest) << "tensor " << tensor << ", element " << i;
      }
    }
  }
};

/// How a case is divided, by chance: mostly its image along its rows.
struct Divided {
  Operators operators;
  Plan division;
  plan::OperatorGraph lowered;

  Divided(Dice& dice, const Case& all) {
    if (!dice.chance(0.05)) division.input_tensor = all.image;
    if (division.input_tensor >= 0) division.dim = dice.chance(0.9) ? 2 : 1;
    operators = operators_of(all.graph, division.input_tensor, division.dim);
    lowered = operator_graph(all.graph, operators, {}, {});
    plan::test::Dice shares(static_cast<std::uint64_t>(dice.integer(0, 1'000'000'000)));
    division.shares = plan::test::any_shares(shares, lowered);
    if (dice.chance(0.5)) division.shares = plan::test::trimmed(lowered, division.shares);
    if (dice.chance(0.5)) division.chunks = static_cast<int>(dice.integer(2, 8));
  }
};

}  // namespace atl::infer::test
