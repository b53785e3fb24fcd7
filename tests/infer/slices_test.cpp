// SPDX-License-Identifier: Apache-2.0
// Every part of an output is computed from the declared rows as the call says, and compared with the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/infer/regions.h"
#include "infer_cases.h"
#include "row_operators.h"
#include "tests/support/rules_text.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::Dice;
using test::Int;
using test::Values;

// One node whose operands have their rows along one dimension.
struct SliceCase {
  Graph graph;
  int dim = 0;
  std::vector<Values> operands;
  Values full;

  const Node& node() const { return graph.nodes.front(); }
};

Shape shape_of(const Shape& before, const Values& rows, const Shape& after) {
  Shape shape = before;
  shape.push_back(test::count(rows));
  shape.insert(shape.end(), after.begin(), after.end());
  return shape;
}

// `more`: the arguments after the operands. The operands are one list if `listed`.
SliceCase case_of(const std::string& name, std::vector<Values> operands, const std::vector<Argument>& more,
                  const Shape& before = {1, 1}, const Shape& after = {}, bool listed = false) {
  SliceCase result;
  result.dim = static_cast<int>(before.size());
  result.operands = std::move(operands);
  Builder builder;
  std::vector<Argument> args;
  TensorIds ids;
  for (const Values& rows : result.operands) {
    const int id = builder.input(shape_of(before, rows, after));
    args.emplace_back(TensorId{id});
    ids.ids.emplace_back(id);
  }
  if (listed) args = {Argument{ids}};
  args.insert(args.end(), more.begin(), more.end());
  builder.call(name, args, {});
  result.full = test::run(builder.last(), result.operands);
  result.graph = builder.graph();
  result.graph.tensors.back().shape = shape_of(before, result.full, after);
  return result;
}

Values values(Dice& dice, Int count) {
  Values result;
  for (Int i = 0; i < count; ++i) result.push_back(dice.real(-2, 2));
  return result;
}

std::string shown(const SliceCase& test, const NodeSplit& split, Region rows) {
  std::string text = test.node().name() + " rows " + std::to_string(rows.begin) + " to " + std::to_string(rows.end) +
                     " of " + std::to_string(test.full.size());
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    const OperandSplit& operand = split.operands[i];
    text += ", operand of " + std::to_string(test.operands[i].size()) + " rows: ";
    text += operand.dim < 0 ? "whole" : to_string(operand.map);
  }
  return text;
}

void expect_part(const SliceCase& test, const NodeSplit& split, Region rows) {
  const SlicedCall call = slice(test.graph, test.node(), test.dim, rows);
  const Values part = test::run(test.node(), call, test.operands);
  ASSERT_EQ(test::count(part), rows.size());
  for (Int o = rows.begin; o < rows.end; ++o) {
    const double expected = test::at(test.full, o);
    const double found = test::at(part, o - rows.begin);
    const bool same = expected == found || std::abs(expected - found) <= 1e-12 * std::max(1.0, std::abs(expected));
    ASSERT_TRUE(same) << "row " << o << " is " << found << ", not " << expected;
  }
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    const OperandSplit& declared = split.operands[i];
    if (declared.dim < 0) continue;
    ASSERT_TRUE(needed(declared.map, rows, test::count(test.operands[i])).holds(call.operands[i].rows));
  }
}

// A row of an operand that changes a row of the output is declared for it.
void expect_influence_declared(const SliceCase& test, const NodeSplit& split) {
  for (std::size_t i = 0; i < split.operands.size(); ++i) {
    if (split.operands[i].dim < 0) continue;
    const Int count = test::count(test.operands[i]);
    for (Int row = 0; row < count; ++row) {
      std::vector<Values> changed = test.operands;
      changed[i][static_cast<std::size_t>(row)] += 5;
      const Values full = test::run(test.node(), changed);
      for (Int o = 0; o < test::count(test.full); ++o) {
        const double before = test::at(test.full, o);
        const double after = test::at(full, o);
        if (before == after || std::abs(before - after) < 1e-9) continue;
        ASSERT_TRUE(needed(split.operands[i].map, {o, o + 1}, count).holds({row, row + 1}))
            << "row " << row << " of operand " << i << " changes row " << o;
      }
    }
  }
}

void expect_parts(const SliceCase& test) {
  if (test.full.empty()) return;
  const auto found = split(test.graph, test.node(), test.dim);
  ASSERT_TRUE(found) << test.node().name() << " with " << test.full.size() << " rows is global";
  ASSERT_NE(found->locality, Locality::kPartial);
  const Int rows = test::count(test.full);
  for (Int x = 0; x < rows; ++x) {
    for (Int y = x + 1; y <= rows; ++y) {
      SCOPED_TRACE(shown(test, *found, {x, y}));
      expect_part(test, *found, {x, y});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  SCOPED_TRACE(shown(test, *found, {0, rows}));
  expect_influence_declared(test, *found);
  EXPECT_EQ(slice(test.graph, test.node(), test.dim, {1, 1}), SlicedCall{});
}

TEST(Slices, Convolutions) {
  Dice dice(11);
  int checked = 0;
  for (int i = 0; i < 400; ++i) {
    const Values x = values(dice, dice.integer(1, 12));
    const Values weight = values(dice, dice.integer(1, 4));
    const Int dilation = dice.integer(1, 3);
    const Int padding = dice.integer(0, 5);
    if (test::count(x) + 2 * padding <= dilation * (test::count(weight) - 1)) continue;
    const Ints stride{dice.integer(1, 4)};
    expect_parts(case_of("aten::conv1d", {x, weight}, {{}, stride, Ints{padding}, Ints{dilation}, 1}));
    ++checked;
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(checked, 300);
}

TEST(Slices, ConvolutionsWithPaddingByName) {
  Dice dice(12);
  for (int i = 0; i < 100; ++i) {
    const Values x = values(dice, dice.integer(8, 14));
    const Values weight = values(dice, dice.integer(1, 4));
    const Ints dilation{dice.integer(1, 2)};
    expect_parts(case_of("aten::conv1d.padding", {x, weight}, {{}, Ints{1}, Text{"same"}, dilation, 1}));
    expect_parts(
        case_of("aten::conv1d.padding", {x, weight}, {{}, Ints{dice.integer(1, 3)}, Text{"valid"}, dilation, 1}));
    if (HasFatalFailure()) return;
  }
}

TEST(Slices, TransposedConvolutions) {
  Dice dice(13);
  for (int i = 0; i < 400; ++i) {
    const Values x = values(dice, dice.integer(1, 7));
    const Values weight = values(dice, dice.integer(1, 4));
    const Int stride = dice.integer(1, 4);
    const Int dilation = dice.integer(1, 3);
    const Int more = dice.integer(0, std::max(stride, dilation) - 1);
    expect_parts(case_of("aten::conv_transpose1d", {x, weight},
                         {{}, Ints{stride}, Ints{dice.integer(0, 3)}, Ints{more}, 1, Ints{dilation}}));
    if (HasFatalFailure()) return;
  }
}

TEST(Slices, Pools) {
  Dice dice(14);
  for (int i = 0; i < 500; ++i) {
    const Int kernel = dice.integer(1, 5);
    const Values x = values(dice, dice.integer(kernel, 13));
    const Ints stride = dice.chance(0.3) ? Ints{} : Ints{dice.integer(1, 4)};
    const Ints padding{dice.integer(0, kernel / 2)};
    const bool ceil_mode = dice.chance(0.5);
    expect_parts(case_of("aten::max_pool1d", {x}, {Ints{kernel}, stride, padding, Ints{1}, ceil_mode}));
    expect_parts(case_of("aten::avg_pool1d", {x}, {Ints{kernel}, stride, padding, ceil_mode, dice.chance(0.5)}));
    const Values wide = values(dice, dice.integer(3 * kernel, 16));
    expect_parts(case_of("aten::max_pool1d", {wide}, {Ints{kernel}, stride, padding, Ints{3}, ceil_mode}));
    if (HasFatalFailure()) return;
  }
}

TEST(Slices, AdaptivePools) {
  Dice dice(15);
  for (Int n = 1; n <= 12; ++n) {
    for (Int m = n == 1 ? 1 : 2; m <= 12; ++m) {
      expect_parts(case_of("aten::adaptive_avg_pool1d", {values(dice, n)}, {Ints{m}}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Slices, ResamplingToASize) {
  Dice dice(16);
  int global = 0;
  for (Int n = 1; n <= 10; ++n) {
    for (Int m = 1; m <= 20; ++m) {
      const Values x = values(dice, n);
      const SliceCase nearest = case_of("aten::upsample_nearest1d.vec", {x}, {Ints{m}, {}});
      const bool rounds_alike = split(nearest.graph, nearest.node(), 2).has_value();
      if (rounds_alike) expect_parts(nearest);
      if (!rounds_alike) ++global;
      expect_parts(case_of("aten::upsample_linear1d.vec", {x}, {Ints{m}, false, {}}));
      expect_parts(case_of("aten::upsample_bicubic2d.vec", {x}, {Ints{m, 1}, false, {}}, {1, 1}, {1}));
      if (n > 1 && m > 1) {
        expect_parts(case_of("aten::upsample_linear1d.vec", {x}, {Ints{m}, true, {}}));
        expect_parts(case_of("aten::upsample_bicubic2d.vec", {x}, {Ints{m, 1}, true, {}}, {1, 1}, {1}));
      }
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_LT(global, 20);  // of 200 sizes: where float and double round to different rows
}

TEST(Slices, ResamplingByAFactor) {
  Dice dice(17);
  for (Int n = 4; n <= 11; ++n) {
    for (const double factor : {1.0, 2.0, 3.0, 0.5, 0.25}) {
      const Values x = values(dice, n);
      expect_parts(case_of("aten::upsample_nearest1d.vec", {x}, {{}, Floats{factor}}));
      expect_parts(case_of("aten::upsample_linear1d.vec", {x}, {{}, false, Floats{factor}}));
      if (factor >= 0.5) expect_parts(case_of("aten::upsample_linear1d.vec", {x}, {{}, true, Floats{factor}}));
      expect_parts(case_of("aten::upsample_bicubic2d.vec", {x}, {{}, false, Floats{factor, 1.0}}, {1, 1}, {1}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Slices, FactorsThatDoNotFitAreGlobal) {
  Dice dice(18);
  const SliceCase third = case_of("aten::upsample_linear1d.vec", {values(dice, 10)}, {{}, false, Floats{1.7}});
  EXPECT_FALSE(split(third.graph, third.node(), 2));
  const SliceCase odd = case_of("aten::upsample_nearest1d.vec", {values(dice, 9)}, {{}, Floats{1.0 / 3}});
  EXPECT_FALSE(split(odd.graph, odd.node(), 2));
}

TEST(Slices, Borders) {
  Dice dice(19);
  for (int i = 0; i < 300; ++i) {
    const Int n = dice.integer(1, 9);
    const Values x = values(dice, n);
    expect_parts(case_of("aten::reflection_pad1d", {x}, {Ints{dice.integer(0, n - 1), dice.integer(0, n - 1)}}));
    expect_parts(case_of("aten::replication_pad1d", {x}, {Ints{dice.integer(0, 5), dice.integer(0, 5)}}));
    const Int low = dice.integer(-n / 2, 5);
    const Int high = dice.integer(-(n - 1) / 2, 5);
    expect_parts(case_of("aten::constant_pad_nd", {x}, {Ints{low, high}, 7.0}));
    if (HasFatalFailure()) return;
  }
}

TEST(Slices, OrdersAndPieces) {
  Dice dice(20);
  for (int i = 0; i < 300; ++i) {
    const Int n = dice.integer(1, 9);
    const Values x = values(dice, n);
    expect_parts(case_of("aten::flip", {x}, {Ints{-1}}));
    expect_parts(case_of("aten::roll", {x}, {Ints{dice.integer(-20, 20)}, Ints{2}}));
    expect_parts(case_of("aten::repeat", {x}, {Ints{1, 1, dice.integer(1, 3)}}));
    const Argument end = dice.chance(0.5) ? Argument{} : Argument{dice.integer(-n, n + 2)};
    expect_parts(case_of("aten::slice.Tensor", {x}, {2, dice.integer(-n, n), end, dice.integer(1, 4)}));
    expect_parts(case_of("aten::cat", {x, values(dice, dice.integer(0, 3)), values(dice, dice.integer(1, 4))}, {-1},
                         {1, 1}, {}, true));
    expect_parts(case_of("aten::diff", {x}, {1, 2, {}, {}}));
    if (HasFatalFailure()) return;
  }
}

TEST(Slices, CausalAttention) {
  Dice dice(21);
  for (int i = 0; i < 60; ++i) {
    const Int queries = dice.integer(1, 7);
    const Int keys = dice.integer(1, 8);
    expect_parts(case_of("aten::scaled_dot_product_attention",
                         {values(dice, queries), values(dice, keys), values(dice, keys)}, {{}, 0.0, true, {}, false},
                         {1, 1}, {1}));
    if (HasFatalFailure()) return;
  }
}

// Libraries multiply few rows by other kernels than many, with other rounding.
TEST(Slices, ProductsOfFewRowsAreFilledUp) {
  const auto product = [](Int rows, Region part) {
    Builder builder;
    const int x = builder.input({1, rows, 3});
    const int weight = builder.input({20, 3});
    builder.call("aten::linear", {TensorId{x}, TensorId{weight}, {}}, {1, rows, 20});
    return slice(builder.graph(), builder.graph().nodes.front(), 1, part);
  };
  const SlicedCall few = product(100, {40, 42});
  EXPECT_EQ(few.operands.front().rows, (Region{40, 42}));
  EXPECT_EQ(few.pads, (std::vector<Pad>{{0, 1, 0, 6, 0}}));
  EXPECT_EQ(few.keep, (Region{0, 2}));
  EXPECT_TRUE(product(100, {40, 48}).pads.empty());
  const SlicedCall in_place = product(6, {3, 5});  // the whole has few rows itself
  EXPECT_EQ(in_place.pads, (std::vector<Pad>{{0, 1, 3, 1, 0}}));
  EXPECT_EQ(in_place.keep, (Region{3, 5}));
}

TEST(Slices, ConvolutionsToFewPlacesAreFilledUp) {
  Builder builder;
  const int x = builder.input({1, 2, 41, 12});
  const int weight = builder.input({5, 2, 3, 3});
  builder.call("aten::conv2d", {TensorId{x}, TensorId{weight}, {}, Ints{2, 2}, Ints{1, 1}, Ints{1, 1}, 1},
               {1, 5, 21, 6});
  const SlicedCall call = slice(builder.graph(), builder.graph().nodes.front(), 2, {0, 1});
  EXPECT_EQ(call.operands.front().rows, (Region{0, 2}));
  EXPECT_EQ(call.pads, (std::vector<Pad>{{0, 2, 1, 4, 0}}));  // the true border, and two more rows of six places
  EXPECT_EQ(call.keep, (Region{0, 1}));
}

}  // namespace
}  // namespace atl::infer
