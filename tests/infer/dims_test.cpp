// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/dims.h"

#include <gtest/gtest.h>

#include "atoll/infer/regions.h"
#include "infer_cases.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::failure;

int convolve(Builder& builder, int input, const Shape& shape) {
  const std::int64_t channels = builder.graph().tensors[static_cast<std::size_t>(input)].shape[1];
  const int weight = builder.weight({shape[1], channels, 3, 3});
  return builder.call("aten::conv2d", {TensorId{input}, TensorId{weight}, {}, Ints{1}, Ints{1}, Ints{1}, 1}, shape);
}

int dim_of(const std::vector<int>& dims, int tensor) { return dims[static_cast<std::size_t>(tensor)]; }

TEST(Dims, AResidualNetIsSplitUpToItsHead) {
  Builder builder;
  const int image = builder.input({1, 3, 16, 16});
  const int stem = convolve(builder, image, {1, 8, 16, 16});
  const int pooled =
      builder.call("aten::max_pool2d", {TensorId{stem}, Ints{2, 2}, Ints{}, Ints{0}, Ints{1}, false}, {1, 8, 8, 8});
  const int inner = convolve(builder, pooled, {1, 8, 8, 8});
  const int sum = builder.call("aten::add.Tensor", {TensorId{inner}, TensorId{pooled}, 1}, {1, 8, 8, 8});
  const int mean = builder.call("aten::adaptive_avg_pool2d", {TensorId{sum}, Ints{1, 1}}, {1, 8, 1, 1});
  const int flat = builder.call("aten::view", {TensorId{mean}, Ints{1, 8}}, {1, 8});
  const int head = builder.call("aten::linear", {TensorId{flat}, TensorId{builder.weight({5, 8})}, {}}, {1, 5});
  for (const int dim : {2, 3}) {
    const auto dims = choose_dims(builder.graph(), image, dim);
    for (const int tensor : {image, stem, pooled, inner, sum}) EXPECT_EQ(dim_of(dims, tensor), dim) << tensor;
    for (const int tensor : {mean, flat, head}) EXPECT_EQ(dim_of(dims, tensor), -1) << tensor;
    EXPECT_EQ(count(builder.graph(), dims), (Localities{4, 1, 2, 0}));
  }
}

TEST(Dims, FlatteningEndsAtTheSplitDimensionPartial) {
  Builder builder;
  const int image = builder.input({1, 4, 6, 6});
  const int flat = builder.call("aten::view", {TensorId{image}, Ints{1, 144}}, {1, 144});
  const auto dims = choose_dims(builder.graph(), image, 2);
  EXPECT_EQ(dim_of(dims, flat), -1);
  EXPECT_EQ(count(builder.graph(), dims), (Localities{0, 0, 1, 0}));
  // Along the first dimension rows stay together, and the linear layer that follows sums over them.
  Builder rows;
  const int plane = rows.input({6, 6});
  const int line = rows.call("aten::view", {TensorId{plane}, Ints{36}}, {36});
  const int answer = rows.call("aten::linear", {TensorId{line}, TensorId{rows.weight({5, 36})}, {}}, {5});
  const auto kept = choose_dims(rows.graph(), plane, 0);
  EXPECT_EQ(dim_of(kept, line), 0);
  EXPECT_EQ(dim_of(kept, answer), -1);
  EXPECT_EQ(count(rows.graph(), kept), (Localities{1, 1, 0, 0}));
}

TEST(Dims, AttentionFollowsItsQueries) {
  Builder builder;
  const int tokens = builder.input({1, 10, 8});
  const auto project = [&] {
    const int all = builder.call("aten::linear", {TensorId{tokens}, TensorId{builder.weight({8, 8})}, {}}, {1, 10, 8});
    const int heads = builder.call("aten::view", {TensorId{all}, Ints{1, 10, 2, 4}}, {1, 10, 2, 4});
    return builder.call("aten::transpose.int", {TensorId{heads}, 1, 2}, {1, 2, 10, 4});
  };
  const int query = project();
  const int key = project();
  const int value = project();
  const int turned = builder.call("aten::transpose.int", {TensorId{key}, 2, 3}, {1, 2, 4, 10});
  const int scores = builder.call("aten::matmul", {TensorId{query}, TensorId{turned}}, {1, 2, 10, 10});
  const int weights = builder.call("aten::softmax.int", {TensorId{scores}, -1, {}}, {1, 2, 10, 10});
  const int mixed = builder.call("aten::matmul", {TensorId{weights}, TensorId{value}}, {1, 2, 10, 4});
  const auto dims = choose_dims(builder.graph(), tokens, 1);
  EXPECT_EQ(dim_of(dims, query), 2);
  EXPECT_EQ(dim_of(dims, turned), 3);
  EXPECT_EQ(dim_of(dims, scores), 2);
  EXPECT_EQ(dim_of(dims, weights), 2);
  EXPECT_EQ(dim_of(dims, mixed), 2);
  EXPECT_EQ(count(builder.graph(), dims), (Localities{13, 0, 0, 0}));
}

TEST(Dims, SplitResumesWhereASplitOperandJoinsAGlobalOne) {
  Builder builder;
  const int image = builder.input({1, 4, 8, 8});
  const int mean = builder.call("aten::mean.dim", {TensorId{image}, Ints{2, 3}, true, {}}, {1, 4, 1, 1});
  const int gate = builder.call("aten::sigmoid", {TensorId{mean}}, {1, 4, 1, 1});
  const int scaled = builder.call("aten::mul.Tensor", {TensorId{image}, TensorId{gate}}, {1, 4, 8, 8});
  const auto dims = choose_dims(builder.graph(), image, 2);
  EXPECT_EQ(dim_of(dims, gate), -1);
  EXPECT_EQ(dim_of(dims, scaled), 2);
  EXPECT_EQ(count(builder.graph(), dims), (Localities{1, 1, 1, 0}));
}

TEST(Dims, ConflictsAreGlobalAndConstantsAreCountedApart) {
  Builder builder;
  const int plane = builder.input({6, 6});
  const int turned = builder.call("aten::t", {TensorId{plane}}, {6, 6});
  const int both = builder.call("aten::add.Tensor", {TensorId{plane}, TensorId{turned}, 1}, {6, 6});
  const int table = builder.call("aten::exp", {TensorId{builder.weight({6})}}, {6});
  const int moved = builder.call("aten::add.Tensor", {TensorId{turned}, TensorId{table}, 1}, {6, 6});
  const auto dims = choose_dims(builder.graph(), plane, 0);
  EXPECT_EQ(dim_of(dims, turned), 1);
  EXPECT_EQ(dim_of(dims, both), -1);
  EXPECT_EQ(dim_of(dims, table), -1);
  EXPECT_EQ(dim_of(dims, moved), 1);
  EXPECT_EQ(count(builder.graph(), dims), (Localities{2, 0, 1, 1}));
}

TEST(Dims, ListsAndSideOutputs) {
  Builder builder;
  const int tokens = builder.input({2, 9, 6});
  const auto parts = builder.calls("aten::split.Tensor", {TensorId{tokens}, 4, -1}, {{2, 9, 4}, {2, 9, 2}});
  const auto across = builder.calls("aten::split.Tensor", {TensorId{tokens}, 5, 1}, {{2, 5, 6}, {2, 4, 6}});
  const auto normed = builder.calls("aten::native_layer_norm", {TensorId{tokens}, Ints{6}, {}, {}, 1e-5},
                                    {{2, 9, 6}, {2, 9, 1}, {2, 9, 1}});
  const auto dims = choose_dims(builder.graph(), tokens, 1);
  for (const int part : parts) EXPECT_EQ(dim_of(dims, part), 1);
  for (const int part : across) EXPECT_EQ(dim_of(dims, part), -1);
  for (const int part : normed) EXPECT_EQ(dim_of(dims, part), 1);
}

TEST(Dims, OneRowHasNoParts) {
  Builder builder;
  const int image = builder.input({1, 3, 3, 9});
  const int weight = builder.weight({1, 3, 3, 3});
  const int row =
      builder.call("aten::conv2d", {TensorId{image}, TensorId{weight}, {}, Ints{1}, Ints{0}, Ints{1}, 1}, {1, 1, 1, 7});
  EXPECT_EQ(dim_of(choose_dims(builder.graph(), image, 2), row), -1);
  EXPECT_EQ(dim_of(choose_dims(builder.graph(), image, 3), row), 3);
}

TEST(Dims, WhatIsNoDimensionOfAnInputIsRefused) {
  Builder builder;
  const int input = builder.input({2, 3});
  const int output = builder.call("aten::relu", {TensorId{input}}, {2, 3});
  const auto refused = [&](int tensor, int dim) {
    return failure(ErrorKind::kInvalidArgument, [&] { choose_dims(builder.graph(), tensor, dim); });
  };
  EXPECT_NE(refused(output, 0).find("tensor 1 is not an input"), std::string::npos);
  EXPECT_NE(refused(input, 2).find("has 2 dimensions, not dimension 2"), std::string::npos);
  EXPECT_NE(refused(input, -1), "");
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { count(builder.graph(), {0}); }), "");
}

// For a node that joins a thousand tensors, each dimension is tried once, not once for each operand.
TEST(Dims, ManyOperandsAreLookedAtOnce) {
  static int looks = 0;
  Rule rule;
  rule.split = [](const NodeView&, int) -> std::optional<NodeSplit> {
    ++looks;
    return std::nullopt;
  };
  register_rule("dims_test::join", rule);
  Builder builder;
  const int input = builder.input({4, 4});
  TensorIds many;
  for (int i = 0; i < 500; ++i) many.ids.emplace_back(input);
  const int joined = builder.call("dims_test::join", {many}, {4, 4});
  EXPECT_EQ(dim_of(choose_dims(builder.graph(), input, 0), joined), -1);
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace atl::infer
