// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/graph.h"

namespace atl::infer::test {

inline constexpr Dtype kSingle = Dtype::kFloat32;

/// An index of a vector.
inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Seeded random numbers.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  bool chance(double share) { return real(0, 1) < share; }

 private:
  std::mt19937_64 engine_;
};

/// Puts a graph together.
class Builder {
 public:
  int input(Shape shape, Dtype dtype = Dtype::kFloat64) {
    graph_.inputs.push_back(tensor(std::move(shape), dtype));
    return graph_.inputs.back();
  }
  int weight(Shape shape, Dtype dtype = Dtype::kFloat64) {
    const int id = tensor(std::move(shape), dtype);
    graph_.weights.push_back({id, "weight" + std::to_string(id)});
    return id;
  }
  /// A call of `name`, such as "aten::add.Tensor", with one output; returns it.
  int call(const std::string& name, std::vector<Argument> args, Shape shape, Dtype dtype = Dtype::kFloat64) {
    return calls(name, std::move(args), {std::move(shape)}, dtype).front();
  }
  std::vector<int> calls(const std::string& name, std::vector<Argument> args, const std::vector<Shape>& shapes,
                         Dtype dtype = Dtype::kFloat64) {
    Node node;
    const std::size_t dot = name.find('.');
    node.op = name.substr(0, dot);
    if (dot != std::string::npos) node.overload = name.substr(dot + 1);
    node.args = std::move(args);
    for (const Shape& shape : shapes) node.outputs.push_back(tensor(shape, dtype));
    graph_.nodes.push_back(node);
    return node.outputs;
  }
  /// The last node's outputs are the elements of one list.
  void be_list() { graph_.nodes.back().is_list = true; }
  void output(int tensor) { graph_.outputs.emplace_back(TensorId{tensor}); }
  const Graph& graph() const { return graph_; }
  const Node& last() const { return graph_.nodes.back(); }

 private:
  int tensor(Shape shape, Dtype dtype) {
    graph_.tensors.push_back({dtype, std::move(shape)});
    return static_cast<int>(graph_.tensors.size()) - 1;
  }
  Graph graph_;
};

/// The error that `call` throws, which must be of `kind`; an empty text when it throws nothing.
inline std::string failure(ErrorKind kind, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return {};
}

inline void expect_words(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << "\"" << text << "\" lacks \"" << words << "\"";
}

/// One of everything that a graph can hold.
inline Graph any_graph() {
  Builder builder;
  const int image = builder.input({1, 3, 16, 16}, Dtype::kFloat32);
  const int mask = builder.input({1, 1, 8, 8}, Dtype::kBool);
  const int weight = builder.weight({4, 3, 3, 3}, Dtype::kFloat32);
  const int bias = builder.weight({4}, Dtype::kFloat32);
  const int a = builder.call("aten::conv2d",
                             {TensorId{image}, TensorId{weight}, TensorId{bias}, Ints{2, 2}, Ints{1, 1}, Ints{1, 1}, 1},
                             {1, 4, 8, 8}, Dtype::kFloat32);
  const int b = builder.call("aten::gelu", {TensorId{a}, Text{"tanh"}}, {1, 4, 8, 8}, Dtype::kFloat32);
  const int c = builder.call("aten::add.Tensor", {TensorId{b}, 1.5, 1}, {1, 4, 8, 8}, Dtype::kFloat32);
  const int d =
      builder.call("aten::masked_fill.Scalar", {TensorId{c}, TensorId{mask}, -HUGE_VAL}, {1, 4, 8, 8}, Dtype::kFloat32);
  const int e = builder.call("aten::cat", {TensorIds{{d, b, a}}, 1}, {1, 12, 8, 8}, Dtype::kFloat32);
  const int f = builder.call(
      "aten::_to_copy",
      {TensorId{e}, Dtype::kFloat64, Layout::kStrided, RunnersDevice{}, {}, false, MemoryFormat::kPreserve},
      {1, 12, 8, 8});
  const int g =
      builder.call("aten::upsample_bilinear2d.vec", {TensorId{f}, {}, false, Floats{2.0, 2.0}}, {1, 12, 16, 16});
  const int h =
      builder.call("aten::index.Tensor", {TensorId{g}, TensorIds{{std::nullopt, std::nullopt}}}, {1, 12, 16, 16});
  const std::vector<int> halves =
      builder.calls("aten::split.Tensor", {TensorId{h}, 6, 1}, {{1, 6, 16, 16}, {1, 6, 16, 16}});
  builder.call("my::filter", {TensorId{halves[0]}, Bools{true, false}, std::nan("")}, {1, 6, 16, 16});
  builder.output(halves[1]);
  Graph graph = builder.graph();
  graph.nodes[graph.nodes.size() - 2].is_list = true;
  for (const Argument& constant : {Argument{}, Argument{7}, Argument{Text{"seven"}}}) graph.outputs.push_back(constant);
  graph.input_structure = R"(["*", "*"])";
  graph.output_structure = "{\"answer\": \"\\u00e4\"}";
  return graph;
}

}  // namespace atl::infer::test
