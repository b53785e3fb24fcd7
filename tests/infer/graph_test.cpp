// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/graph.h"

#include <gtest/gtest.h>

#include <tuple>

#include "infer_cases.h"

namespace atl::infer {
namespace {

using test::any_graph;
using test::expect_words;
using test::failure;

std::string refused(const std::function<void(Graph&)>& change) {
  Graph graph = any_graph();
  change(graph);
  return failure(ErrorKind::kProtocol, [&] { check(graph); });
}

TEST(Graph, KnowsItsElementTypes) {
  const std::vector<std::tuple<const char*, int, bool>> known{
      {"float16", 2, true}, {"bfloat16", 2, true}, {"float32", 4, true}, {"float64", 8, true}, {"int8", 1, false},
      {"int16", 2, false},  {"int32", 4, false},   {"int64", 8, false},  {"uint8", 1, false},  {"bool", 1, false}};
  for (const auto& [name, bytes, floating] : known) {
    const auto dtype = try_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_STREQ(to_string(*dtype), name);
    EXPECT_EQ(bytes_of(*dtype), bytes);
    EXPECT_EQ(is_floating(*dtype), floating);
  }
  EXPECT_FALSE(try_dtype("complex64"));
  EXPECT_FALSE(try_dtype(""));
  EXPECT_EQ((Tensor{Dtype::kInt16, {2, 3, 5}}).bytes(), 60);
  EXPECT_EQ((Tensor{Dtype::kInt16, {2, 0, 5}}).bytes(), 0);
  EXPECT_EQ((Tensor{Dtype::kInt16, {}}).elements(), 1);
}

TEST(Graph, OperandsAreInOrderWithoutThoseThatAreAbsent) {
  Node node;
  node.args = {TensorId{4}, 1, {}, TensorIds{{7, std::nullopt, 4}}, Text{"x"}, TensorId{1}};
  EXPECT_EQ(operands_of(node), (std::vector<int>{4, 7, 4, 1}));
  EXPECT_EQ(operands_of(Node{}), std::vector<int>{});
}

TEST(Graph, AWellFormedOneIsAccepted) {
  EXPECT_EQ(refused([](Graph&) {}), "");
  EXPECT_EQ(failure(ErrorKind::kProtocol, [] { check(Graph{}); }), "");
}

TEST(Graph, EveryTensorIsMadeOnceAndBeforeItIsUsed) {
  expect_words(refused([](Graph& graph) { graph.inputs.push_back(0); }), "input 2 is tensor 0, which is made twice");
  expect_words(refused([](Graph& graph) { graph.inputs.pop_back(); }), "uses tensor 1 before it is made");
  expect_words(refused([](Graph& graph) { graph.tensors.push_back({}); }), "is neither an input nor a weight");
  expect_words(refused([](Graph& graph) { graph.inputs.push_back(-1); }), "input 2 is tensor -1");
  expect_words(refused([](Graph& graph) { graph.weights[0].tensor = 99; }), "\"weight2\" is tensor 99");
  expect_words(refused([](Graph& graph) { graph.nodes[1].args[0] = TensorId{5}; }),
               "node 1 (aten::gelu) uses tensor 5 before it is made");
  expect_words(refused([](Graph& graph) { graph.nodes[1].outputs[0] = 4; }),
               "node 1 (aten::gelu)'s output 0 is tensor 4");
  expect_words(refused([](Graph& graph) { std::swap(graph.nodes[0], graph.nodes[1]); }), "before it is made");
  expect_words(refused([](Graph& graph) { graph.outputs[0] = TensorId{77}; }), "output 0 uses tensor 77");
  expect_words(refused([](Graph& graph) { graph.outputs[0] = TensorIds{{1}}; }), "output 0 is a list of tensors");
}

TEST(Graph, EverythingHasABound) {
  expect_words(refused([](Graph& graph) { graph.tensors[0].shape = Shape(9, 1); }), "tensor 0 has 9 dimensions");
  expect_words(refused([](Graph& graph) { graph.tensors[0].shape = {1, -1}; }), "a dimension of -1");
  expect_words(refused([](Graph& graph) { graph.tensors[0].shape = {1 << 20, 1 << 20}; }), "more than 2^40 elements");
  // Even if an empty dimension leaves it without elements.
  expect_words(refused([](Graph& graph) {
                 graph.tensors[0].shape = {1 << 20, 0, 1 << 20};
               }),
               "more than 2^40 elements");
  EXPECT_EQ(refused([](Graph& graph) { graph.tensors[0].shape = {(1 << 20) - 1, 0, 1 << 20}; }), "");
  expect_words(refused([](Graph& graph) { graph.nodes[0].args[6] = kIntegerBound; }),
               "node 0 (aten::conv2d)'s argument 6 is 1099511627776");
  expect_words(refused([](Graph& graph) {
                 graph.nodes[0].args[3] = Ints{1, -kIntegerBound};
               }),
               "argument 3 has -1099511");
  EXPECT_EQ(refused([](Graph& graph) { graph.nodes[0].args[3] = Ints{1, 1 - kIntegerBound}; }), "");
  expect_words(refused([](Graph& graph) { graph.nodes[0].args[3] = Ints(1000, 1); }), "more than 1000 arguments");
  expect_words(refused([](Graph& graph) { graph.nodes[0].args.resize(1001); }), "more than 1000 arguments");
  expect_words(refused([](Graph& graph) { graph.nodes.resize(20'001); }), "more than 20000 nodes");
  expect_words(refused([](Graph& graph) { graph.weights[0].name = ""; }), "a weight's name has 0 characters");
  expect_words(refused([](Graph& graph) { graph.input_structure.assign(kMaxTextBytes + 1, 'x'); }), "its structure");
}

TEST(Graph, OperatorsHaveNamesThatCanBeShown) {
  for (const char* name : {"", "relu", "::relu", "aten::", "aten::re lu", "aten::relu\n", "a::b::c"}) {
    expect_words(refused([&](Graph& graph) { graph.nodes[0].op = name; }), "node 0 has an op");
  }
  expect_words(refused([](Graph& graph) { graph.nodes[0].overload = "a.b"; }), "node 0 has an op");
  expect_words(refused([](Graph& graph) { graph.nodes[0].overload.assign(2000, 'a'); }), "node 0 has an op");
}

}  // namespace
}  // namespace atl::infer
