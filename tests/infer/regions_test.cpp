// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/regions.h"

#include <gtest/gtest.h>

#include "infer_cases.h"
#include "tests/support/rules_text.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::failure;

// "element 2:identity whole": the locality, and for each operand its dimension and map.
std::string shown(const Graph& graph, const Node& node, int output_dim) {
  const auto found = split(graph, node, output_dim);
  if (!found) return "global";
  std::string text = to_string(found->locality);
  if (found->locality == Locality::kPartial) return text + " " + std::to_string(found->state_bytes);
  for (const OperandSplit& operand : found->operands) {
    text += operand.dim < 0 ? " whole" : " " + std::to_string(operand.dim) + ":" + to_string(operand.map);
  }
  return text;
}

// By dimension of the output. The operands are the first arguments.
std::vector<std::string> splits(const std::string& name, const std::vector<Shape>& shapes, std::vector<Argument> args,
                                const Shape& output) {
  Builder builder;
  std::vector<Argument> all;
  for (const Shape& shape : shapes) all.emplace_back(TensorId{builder.input(shape)});
  all.insert(all.end(), args.begin(), args.end());
  builder.call(name, all, output);
  std::vector<std::string> texts;
  for (int dim = 0; dim < static_cast<int>(output.size()); ++dim) {
    texts.push_back(shown(builder.graph(), builder.last(), dim));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Regions, ElementsAreBroadcast) {
  EXPECT_EQ(splits("aten::relu", {{2, 3}}, {}, {2, 3}), (Texts{"element 0:identity", "element 1:identity"}));
  EXPECT_EQ(splits("aten::add.Tensor", {{2, 3}, {3}}, {1}, {2, 3}),
            (Texts{"element 0:identity whole", "element 1:identity 0:identity"}));
  EXPECT_EQ(splits("aten::mul.Tensor", {{2, 1}, {1, 3}}, {}, {2, 3}),
            (Texts{"element 0:identity whole", "element whole 1:identity"}));
  EXPECT_EQ(splits("aten::where.self", {{3}, {2, 3}, {}}, {}, {2, 3}),
            (Texts{"element whole 0:identity whole", "element 0:identity 1:identity whole"}));
  // A shape that the operands cannot have: such a node is not split.
  EXPECT_EQ(splits("aten::add.Tensor", {{2, 3}, {4}}, {1}, {2, 3}), (Texts{"element 0:identity whole", "global"}));
}

TEST(Regions, UnknownOperatorsAreGlobal) {
  EXPECT_EQ(splits("aten::fft_fft", {{2, 3}}, {}, {2, 3}), (Texts{"global", "global"}));
  EXPECT_EQ(splits("my::relu", {{2}}, {}, {2}), (Texts{"global"}));
  EXPECT_EQ(splits("aten::squeeze", {{2, 1}}, {}, {2}), (Texts{"global"}));
  EXPECT_EQ(splits("aten::dropout", {{2}}, {0.5, true}, {2}), (Texts{"global"}));
  EXPECT_EQ(splits("aten::dropout", {{2}}, {0.5, false}, {2}), (Texts{"element 0:identity"}));
}

TEST(Regions, Convolutions) {
  const std::vector<Argument> plain{{}, Ints{2, 1}, Ints{1, 0}, Ints{1}, 1};
  EXPECT_EQ(splits("aten::conv2d", {{2, 3, 9, 8}, {4, 3, 3, 2}}, plain, {2, 4, 5, 7}),
            (Texts{"row 0:identity whole", "row whole 0:identity",
                   "block 2:window(kernel 3, stride 2, padding 1, dilation 1) whole",
                   "block 3:window(kernel 2, stride 1, padding 0, dilation 1) whole"}));
  // Without a batch.
  EXPECT_EQ(splits("aten::conv2d", {{3, 9, 8}, {4, 3, 3, 2}}, plain, {4, 5, 7})[1],
            "block 1:window(kernel 3, stride 2, padding 1, dilation 1) whole");
  // With groups, a channel of the output has input channels of its own.
  const std::vector<Argument> grouped{{}, Ints{2, 1}, Ints{1, 0}, Ints{1}, 3};
  EXPECT_EQ(splits("aten::conv2d", {{2, 3, 9, 8}, {3, 1, 3, 2}}, grouped, {2, 3, 5, 7})[1], "global");
  EXPECT_EQ(splits("aten::conv2d", {{2, 3, 9, 8}, {4, 3, 3, 2}}, plain, {2, 4, 6, 7})[2], "global");
  const std::vector<Argument> turned{{}, Ints{2}, Ints{1}, Ints{1}, true, Ints{1}, 1};
  EXPECT_EQ(splits("aten::convolution", {{1, 2, 5}, {2, 4, 3}}, turned, {1, 4, 10}),
            (Texts{"row 0:identity whole", "row whole 1:identity",
                   "block 2:transposed(kernel 3, stride 2, padding 1, dilation 1) whole"}));
}

TEST(Regions, IndicesOfMaximaCannotBeSliced) {
  const std::vector<Argument> pool{Ints{2, 2}, Ints{}, Ints{0}, Ints{1}, false};
  Builder builder;
  std::vector<Argument> args{TensorId{builder.input({1, 3, 8, 8})}};
  args.insert(args.end(), pool.begin(), pool.end());
  const auto outputs = builder.calls("aten::max_pool2d_with_indices", args, {{1, 3, 4, 4}, {1, 3, 4, 4}});
  EXPECT_EQ(shown(builder.graph(), builder.last(), 2), "block 2:window(kernel 2, stride 2, padding 0, dilation 1)");
  Builder used = builder;
  used.output(outputs[1]);
  EXPECT_EQ(shown(used.graph(), used.last(), 2), "global");
  EXPECT_EQ(shown(used.graph(), used.last(), 1), "element 1:identity");
}

TEST(Regions, Views) {
  EXPECT_EQ(splits("aten::view", {{2, 6, 8}}, {Ints{2, 6, 2, 4}}, {2, 6, 2, 4}),
            (Texts{"element 0:identity", "element 1:identity", "block 2:scale(times 4, over 1)", "global"}));
  EXPECT_EQ(splits("aten::_unsafe_view", {{2, 3, 4, 5}}, {Ints{2, 3, 20}}, {2, 3, 20}),
            (Texts{"element 0:identity", "element 1:identity", "block 2:scale(times 1, over 5)"}));
  EXPECT_EQ(splits("aten::reshape", {{2, 3, 4}}, {Ints{6, 4}}, {6, 4}),
            (Texts{"block 0:scale(times 1, over 3)", "element 2:identity"}));
  EXPECT_EQ(splits("aten::view", {{2, 3}}, {Ints{3, 2}}, {3, 2}), (Texts{"global", "global"}));
  EXPECT_EQ(splits("aten::view", {{1, 8}}, {Ints{8, 1}}, {8, 1})[0], "element 1:identity");
  EXPECT_EQ(splits("aten::flatten.using_ints", {{2, 3, 4}}, {1, -1}, {2, 12}),
            (Texts{"element 0:identity", "block 1:scale(times 1, over 4)"}));
  EXPECT_EQ(splits("aten::view.dtype", {{2, 3}}, {Dtype::kInt32}, {2, 3}), (Texts{"global", "global"}));
}

TEST(Regions, DimensionsMove) {
  EXPECT_EQ(splits("aten::permute", {{2, 3, 4}}, {Ints{2, 0, -2}}, {4, 2, 3}),
            (Texts{"element 2:identity", "element 0:identity", "element 1:identity"}));
  EXPECT_EQ(splits("aten::transpose.int", {{2, 3, 4}}, {-1, 0}, {4, 3, 2}),
            (Texts{"element 2:identity", "element 1:identity", "element 0:identity"}));
  EXPECT_EQ(splits("aten::t", {{2, 3}}, {}, {3, 2}), (Texts{"element 1:identity", "element 0:identity"}));
  EXPECT_EQ(splits("aten::movedim.int", {{2, 3, 4}}, {0, 2}, {3, 4, 2}),
            (Texts{"element 1:identity", "element 2:identity", "element 0:identity"}));
  EXPECT_EQ(splits("aten::unsqueeze", {{2, 3}}, {1}, {2, 1, 3}),
            (Texts{"element 0:identity", "global", "element 1:identity"}));
  EXPECT_EQ(splits("aten::squeeze.dim", {{2, 1, 3}}, {1}, {2, 3}), (Texts{"element 0:identity", "element 2:identity"}));
  // Dropped from a slice of one row, kept in the whole.
  EXPECT_EQ(splits("aten::squeeze.dims", {{2, 1, 3}}, {Ints{0, 1}}, {2, 3}), (Texts{"global", "element 2:identity"}));
  EXPECT_EQ(splits("aten::select.int", {{2, 3, 4}}, {1, 0}, {2, 4}),
            (Texts{"element 0:identity", "element 2:identity"}));
  EXPECT_EQ(splits("aten::expand", {{3, 1}}, {Ints{2, -1, 4}, false}, {2, 3, 4}),
            (Texts{"element whole", "element 0:identity", "element whole"}));
  EXPECT_EQ(
      splits("aten::pixel_shuffle", {{1, 8, 3, 3}}, {2}, {1, 2, 6, 6}),
      (Texts{"element 0:identity", "global", "block 2:scale(times 1, over 2)", "block 3:scale(times 1, over 2)"}));
}

TEST(Regions, Products) {
  EXPECT_EQ(splits("aten::linear", {{2, 7, 8}, {5, 8}, {5}}, {}, {2, 7, 5}),
            (Texts{"row 0:identity whole whole", "row 1:identity whole whole", "row whole 0:identity 0:identity"}));
  EXPECT_EQ(splits("aten::matmul", {{4, 2, 3}, {3, 5}}, {}, {4, 2, 5}),
            (Texts{"row 0:identity whole", "row 1:identity whole", "row whole 1:identity"}));
  EXPECT_EQ(splits("aten::matmul", {{6, 1, 2, 3}, {4, 3, 5}}, {}, {6, 4, 2, 5}),
            (Texts{"row 0:identity whole", "row whole 0:identity", "row 2:identity whole", "row whole 2:identity"}));
  EXPECT_EQ(splits("aten::matmul", {{2, 3}, {3}}, {}, {2}), (Texts{"row 0:identity whole"}));
  EXPECT_EQ(splits("aten::addmm", {{5}, {2, 3}, {3, 5}}, {1, 1}, {2, 5}),
            (Texts{"row whole 0:identity whole", "row 0:identity whole 1:identity"}));
  EXPECT_EQ(splits("aten::embedding", {{9, 4}, {2, 3}}, {-1, false, false}, {2, 3, 4}),
            (Texts{"row whole 0:identity", "row whole 1:identity", "row 1:identity whole"}));
  const std::vector<Argument> attention{{}, 0.0, false, {}, false};
  const std::vector<Shape> heads{{2, 3, 5, 4}, {2, 3, 6, 4}, {2, 3, 6, 4}};
  EXPECT_EQ(splits("aten::scaled_dot_product_attention", heads, attention, {2, 3, 5, 4}),
            (Texts{"row 0:identity 0:identity 0:identity", "row 1:identity 1:identity 1:identity",
                   "row 2:identity whole whole", "global"}));
  EXPECT_EQ(splits("aten::einsum", {{2, 3}}, {}, {2}), (Texts{"global"}));
}

TEST(Regions, SumsOverTheSplitDimensionArePartial) {
  EXPECT_EQ(splits("aten::softmax.int", {{2, 3}}, {-1, {}}, {2, 3}), (Texts{"row 0:identity", "partial 32"}));
  EXPECT_EQ(splits("aten::mean.dim", {{2, 3, 4}}, {Ints{1}, false, {}}, {2, 4}),
            (Texts{"element 0:identity", "element 2:identity"}));
  EXPECT_EQ(splits("aten::mean.dim", {{2, 3, 4}}, {Ints{-1, -2}, true, {}}, {2, 1, 1}),
            (Texts{"element 0:identity", "partial 16", "partial 16"}));
  EXPECT_EQ(splits("aten::adaptive_avg_pool2d", {{1, 3, 8, 8}}, {Ints{1, 1}}, {1, 3, 1, 1}),
            (Texts{"element 0:identity", "element 1:identity", "partial 24", "partial 24"}));
  EXPECT_EQ(splits("aten::group_norm", {{2, 6, 5}}, {3, {}, {}, 1e-5, false}, {2, 6, 5}),
            (Texts{"element 0:identity", "partial 96", "partial 96"}));
  EXPECT_EQ(splits("aten::cumsum", {{2, 5}}, {1, {}}, {2, 5}), (Texts{"element 0:identity", "partial 16"}));
}

TEST(Regions, NormsOverOtherDimensionsAreLocal) {
  Builder builder;
  const int input = builder.input({2, 5, 8});
  const int weight = builder.weight({8});
  builder.call("aten::layer_norm", {TensorId{input}, Ints{8}, TensorId{weight}, {}, 1e-5, false}, {2, 5, 8});
  EXPECT_EQ(shown(builder.graph(), builder.last(), 1), "row 1:identity whole");
  EXPECT_EQ(shown(builder.graph(), builder.last(), 2), "partial " + std::to_string(2 * 5 * 2 * 8));
  const std::vector<int> statistics(4, builder.weight({5}));
  std::vector<Argument> args{TensorId{input}};
  for (const int id : statistics) args.emplace_back(TensorId{id});
  args.insert(args.end(), {0.1, 1e-5});
  builder.calls("aten::_native_batch_norm_legit_no_training", args, {{2, 5, 8}, {0}, {0}});
  EXPECT_EQ(shown(builder.graph(), builder.last(), 2), "element 2:identity whole whole whole whole");
  EXPECT_EQ(shown(builder.graph(), builder.last(), 1),
            "element 1:identity 0:identity 0:identity 0:identity 0:identity");
  builder.call("aten::instance_norm", {TensorId{input}, {}, {}, {}, {}, true, 0.1, 1e-5, false}, {2, 5, 8});
  EXPECT_EQ(shown(builder.graph(), builder.last(), 1), "element 1:identity");
  EXPECT_EQ(shown(builder.graph(), builder.last(), 2), "partial " + std::to_string(2 * 5 * 2 * 8));
}

TEST(Regions, BytesOfPartsByOperand) {
  Builder builder;
  const int input = builder.input({2, 7, 8}, Dtype::kFloat16);
  const int weight = builder.weight({5, 8}, Dtype::kFloat16);
  builder.call("aten::linear", {TensorId{input}, TensorId{weight}, {}}, {2, 7, 5}, Dtype::kFloat16);
  EXPECT_EQ(partial_bytes(builder.graph(), builder.last(), 0, 2), 2 * 7 * 5 * 4);
  EXPECT_EQ(partial_bytes(builder.graph(), builder.last(), 0, 1), std::nullopt);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { partial_bytes(builder.graph(), builder.last(), 0, 3); }), "");
  const int keys = builder.input({2, 9, 8});
  builder.call("aten::scaled_dot_product_attention",
               {TensorId{keys}, TensorId{keys}, TensorId{keys}, {}, 0.0, false, {}, false}, {2, 9, 8});
  EXPECT_EQ(partial_bytes(builder.graph(), builder.last(), 0, 1), std::nullopt);
  EXPECT_EQ(partial_bytes(builder.graph(), builder.last(), 2, 1), (2 * 9 * 8 + 2 * 2 * 9) * 8);
}

TEST(Regions, AConvolutionIsPaddedWhereTheTrueBorderIs) {
  Builder builder;
  const int input = builder.input({1, 3, 8, 8});
  const int weight = builder.weight({4, 3, 3, 3});
  builder.call("aten::conv2d", {TensorId{input}, TensorId{weight}, {}, Ints{1, 1}, Ints{1, 1}, Ints{1, 1}, 1},
               {1, 4, 8, 8});
  const auto call = [&](Region rows) { return slice(builder.graph(), builder.last(), 2, rows); };
  SlicedCall top{{{input, 2, {0, 5}}, {weight, -1, {}}}, {{0, 2, 1, 0, 0}}, {{4, Ints{0, 1}}}, {0, 4}};
  EXPECT_EQ(call({0, 4}), top);
  SlicedCall middle{{{input, 2, {1, 6}}, {weight, -1, {}}}, {}, {{4, Ints{0, 1}}}, {0, 3}};
  EXPECT_EQ(call({2, 5}), middle);
  // All rows are the unchanged call.
  SlicedCall all{{{input, 2, {0, 8}}, {weight, -1, {}}}, {}, {}, {0, 8}};
  EXPECT_EQ(call({0, 8}), all);
  EXPECT_EQ(call({3, 3}), SlicedCall{});
}

TEST(Regions, WhatCannotBeAskedIsRefused) {
  Builder builder;
  const int input = builder.input({4, 3});
  builder.call("aten::softmax.int", {TensorId{input}, 1, {}}, {4, 3});
  const auto refused = [&](int dim, Region rows) {
    return failure(ErrorKind::kInvalidArgument, [&] { slice(builder.graph(), builder.last(), dim, rows); });
  };
  EXPECT_EQ(refused(0, {0, 4}), "");
  EXPECT_EQ(refused(0, {0, 5}), "aten::softmax.int, which makes tensor 1, has 4 rows, not [0, 5)");
  EXPECT_NE(refused(0, {-1, 2}), "");
  EXPECT_NE(refused(1, {0, 2}).find("cannot be computed in parts along dimension 1"), std::string::npos);
  EXPECT_NE(refused(2, {0, 2}).find("has no dimension 2"), std::string::npos);
  EXPECT_NE(refused(-1, {0, 2}), "");
  // A node that its operator would refuse.
  builder.call("aten::softmax.int", {TensorId{input}, Text{"x"}, {}}, {4, 3});
  const std::string broken = failure(ErrorKind::kProtocol, [&] { slice(builder.graph(), builder.last(), 0, {0, 2}); });
  EXPECT_NE(broken.find("argument 1 of the wrong type: it must be an integer"), std::string::npos) << broken;
}

TEST(Regions, UsersGiveTheirOperatorsRules) {
  Rule rule;
  rule.split = [](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    if (output_dim != 2) return std::nullopt;
    NodeSplit split{Locality::kBlock, {{view.tensor_of(0), 2, maps::Window{5, 1, 2, 1}}}, 0};
    return split;
  };
  rule.slice = [](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
    SlicedCall call = call_by_rows(view, split, rows);
    const Cut parts = cut(reached(split.operands[0].map, rows, view.rows(0, output_dim)), view.rows(0, output_dim));
    call.pads.push_back({0, output_dim, parts.low, parts.high, 0});
    return call;
  };
  register_rule("test::blur", rule);
  Builder builder;
  const int input = builder.input({1, 1, 9});
  builder.call("test::blur", {TensorId{input}}, {1, 1, 9});
  EXPECT_EQ(shown(builder.graph(), builder.last(), 2), "block 2:window(kernel 5, stride 1, padding 2, dilation 1)");
  EXPECT_EQ(shown(builder.graph(), builder.last(), 1), "global");
  SlicedCall low{{{input, 2, {0, 6}}}, {{0, 2, 2, 0, 0}}, {}, {0, 4}};
  EXPECT_EQ(slice(builder.graph(), builder.last(), 2, {0, 4}), low);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { register_rule("test::blur", rule); }), "");
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { register_rule("aten::relu", rule); }), "");
}

TEST(Regions, ARuleThatReadsMoreThanItDeclaresIsFound) {
  Rule rule;
  rule.split = [](const NodeView& view, int) -> std::optional<NodeSplit> {
    return NodeSplit{Locality::kElement, {{view.tensor_of(0), 0, maps::Identity{}}}, 0};
  };
  rule.slice = [](const NodeView& view, const NodeSplit& split, int, Region rows) {
    return call_by_rows(view, split, {rows.begin, rows.end + 1});
  };
  register_rule("test::greedy", rule);
  Builder builder;
  builder.call("test::greedy", {TensorId{builder.input({9})}}, {9});
  EXPECT_NE(failure(ErrorKind::kInternal, [&] { slice(builder.graph(), builder.last(), 0, {2, 4}); }), "");
}

}  // namespace
}  // namespace atl::infer
