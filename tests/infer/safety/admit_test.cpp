// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/admit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "tests/fuzz/admit_target.h"
#include "tests/infer/infer_cases.h"
#include "tests/support/graph_text.h"

namespace atl::infer::safety {
namespace {

using test::Builder;
using test::failure;
using test::kSingle;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string refusal(const Graph& graph, const Limits& limits = {}) {
  return failure(ErrorKind::kRefused, [&] { admit(graph, limits); });
}

// A graph with one call of `name` on inputs of these shapes, given to `args` as their numbers.
template <typename Args>
Graph calling(const std::string& name, const std::vector<Shape>& operands, Args args, const std::vector<Shape>& outputs,
              Dtype dtype = kSingle) {
  Builder builder;
  std::vector<TensorId> ids;
  for (const Shape& shape : operands) ids.push_back({builder.input(shape, dtype)});
  const std::vector<int> made = builder.calls(name, args(ids), outputs, dtype);
  builder.output(made.front());
  return builder.graph();
}

using Ids = std::vector<TensorId>;
using Args = std::vector<Argument>;

Graph convolving(const Shape& image, const Shape& weight, Ints stride, Ints padding, Ints dilation, std::int64_t groups,
                 const Shape& made) {
  return calling("aten::conv2d", {image, weight},
                 [&](const Ids& x) { return Args{x[0], x[1], {}, stride, padding, dilation, groups}; }, {made});
}

Graph attending(const Shape& query, const Shape& key, const Shape& value, const Shape& made) {
  return calling("aten::scaled_dot_product_attention", {query, key, value},
                 [](const Ids& x) { return Args{x[0], x[1], x[2], {}, 0.0, false, {}, false}; }, {made});
}

Graph normalising(const std::string& name, const Shape& image, const Shape& mean, const std::vector<Shape>& made) {
  return calling(
      name, {image, mean},
      [&](const Ids& x) {
        if (name == "aten::batch_norm") return Args{x[0], {}, {}, x[1], x[1], false, 0.1, 1e-5, false};
        return Args{x[0], {}, {}, x[1], x[1], 0.1, 1e-5};
      },
      made);
}

Graph remembering(const Shape& input, const Shape& state, const std::vector<Shape>& weights, std::int64_t layers) {
  std::vector<Shape> operands{input, state, state};
  operands.insert(operands.end(), weights.begin(), weights.end());
  return calling("aten::lstm.input", operands,
                 [&](const Ids& x) {
                   TensorIds params;
                   for (std::size_t i = 3; i < x.size(); ++i) params.ids.emplace_back(x[i].id);
                   return Args{x[0], TensorIds{{x[1].id, x[2].id}}, params, false, layers, 0.0, false, false, false};
                 },
                 {{input[0], input[1], state[2]}, state, state});
}

// Proves I-8.
TEST(Admit, TheElevenCallsThatKernelsDidNotSurvive) {
  // Statistics for one channel instead of six: the kernel would read past them.
  const std::string plain = "aten::_native_batch_norm_legit_no_training";
  EXPECT_THAT(refusal(normalising(plain, {1, 6, 4, 4}, {6}, {{1, 6, 4, 4}, {0}, {0}})), IsEmpty());
  EXPECT_THAT(refusal(normalising(plain, {1, 6, 4, 4}, {1}, {{1, 6, 4, 4}, {0}, {0}})), HasSubstr("wrong shape"));
  EXPECT_THAT(refusal(normalising("aten::batch_norm", {1, 6, 4, 4}, {1}, {{1, 6, 4, 4}})), HasSubstr("wrong shape"));
  // More keys than values, and no batch.
  EXPECT_THAT(refusal(attending({1, 2, 5, 4}, {1, 2, 7, 4}, {1, 2, 7, 3}, {1, 2, 5, 3})), IsEmpty());
  EXPECT_THAT(refusal(attending({1, 2, 5, 4}, {1, 2, 7, 4}, {1, 2, 3, 4}, {1, 2, 5, 4})), HasSubstr("values"));
  EXPECT_THAT(refusal(attending({0, 2, 5, 4}, {0, 2, 7, 4}, {0, 2, 7, 4}, {0, 2, 5, 4})), HasSubstr("no elements"));
  // Weights of another layer's size, and too few.
  EXPECT_THAT(refusal(remembering({7, 2, 6}, {1, 2, 5}, {{20, 6}, {20, 5}}, 1)), IsEmpty());
  EXPECT_THAT(refusal(remembering({7, 2, 6}, {1, 2, 5}, {{20, 6}, {20, 1}}, 1)), HasSubstr("weight 1"));
  EXPECT_THAT(refusal(remembering({7, 2, 6}, {2, 2, 5}, {{20, 6}, {20, 5}}, 2)),
              HasSubstr("does not match its layers"));
  // These are not on the list.
  for (const char* name : {"aten::col2im", "aten::embedding_bag", "aten::_native_batch_norm_legit.no_stats"}) {
    const Graph graph = calling(name, {{2, 2}}, [](const Ids& x) { return Args{x[0]}; }, {{2, 2}});
    EXPECT_THAT(refusal(graph), HasSubstr("not on the server's list"));
  }
  // A padding that is longer than the window.
  const auto pooling = [](std::int64_t padding) {
    return calling("aten::max_pool1d", {{1, 2, 8}},
                   [=](const Ids& x) { return Args{x[0], Ints{2}, Ints{2}, Ints{padding}, Ints{1}, false}; },
                   {{1, 2, 4 + padding}});
  };
  EXPECT_THAT(refusal(pooling(0)), IsEmpty());
  EXPECT_THAT(refusal(pooling(2)), HasSubstr("more than half"));
  // Null where a tensor belongs.
  const Graph copying = calling("aten::copy", {{2, 2}}, [](const Ids& x) { return Args{x[0], {}, false}; }, {{2, 2}});
  EXPECT_THAT(refusal(copying), HasSubstr("must be a tensor"));
  // Memory bombs.
  const auto filling = [](std::int64_t rows) {
    return calling("aten::full", {}, [=](const Ids&) { return Args{Ints{rows}, 1.0, kSingle, {}, {}, {}}; }, {{rows}});
  };
  EXPECT_THAT(refusal(filling(1000)), IsEmpty());
  EXPECT_THAT(refusal(filling(std::int64_t{1} << 30)), HasSubstr("of memory"));
  EXPECT_THAT(refusal(filling(std::int64_t{1} << 33)), Not(IsEmpty()));
  EXPECT_THAT(refusal(convolving({1, 3, 8, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, {1, 4, 8, 8})), IsEmpty());
  const std::int64_t bomb = std::int64_t{1} << 31;
  EXPECT_THAT(refusal(convolving({1, 3, 8, 8}, {4, 3, 3, 3}, {1, 1}, {bomb, bomb}, {1, 1}, 1, {1, 4, 8, 8})),
              HasSubstr("integers from 0 to 4096"));
  // A small result from a small image, and gigabytes of columns between them.
  EXPECT_THAT(
      refusal(convolving({1, 5000, 2, 2}, {1, 5000, 3, 3}, {1, 1}, {1000, 1000}, {1, 1}, 1, {1, 1, 2000, 2000})),
      HasSubstr("of memory"));
}

TEST(Admit, DeclaredOutputsMustBeThoseThatAreMade) {
  const auto adding = [](const Shape& made, Dtype dtype) {
    Builder builder;
    const int a = builder.input({3, 1}, kSingle);
    const int b = builder.input({4}, kSingle);
    builder.output(builder.call("aten::add.Tensor", {TensorId{a}, TensorId{b}, 1}, made, dtype));
    return builder.graph();
  };
  EXPECT_THAT(refusal(adding({3, 4}, kSingle)), IsEmpty());
  EXPECT_THAT(refusal(adding({3, 5}, kSingle)), HasSubstr("node 0 (aten::add.Tensor): output 0 is float32 [3, 4]"));
  EXPECT_THAT(refusal(adding({3, 4, 1}, kSingle)), HasSubstr("the graph declares float32 [3, 4, 1]"));
  EXPECT_THAT(refusal(adding({3, 4}, Dtype::kFloat64)), HasSubstr("the graph declares float64 [3, 4]"));
}

TEST(Admit, AListIsNotSeveralResults) {
  Builder builder;
  const int x = builder.input({2, 3}, kSingle);
  builder.output(builder.calls("aten::unbind.int", {TensorId{x}, 0}, {{3}, {3}}, kSingle).front());
  Graph graph = builder.graph();
  EXPECT_THAT(refusal(graph), HasSubstr("2 tensors as a list"));
  graph.nodes[0].is_list = true;
  EXPECT_THAT(refusal(graph), IsEmpty());
}

TEST(Admit, LimitsHold) {
  const Graph graph = convolving({1, 3, 8, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, {1, 4, 8, 8});
  EXPECT_THAT(refusal(graph, {.node_bytes = 1000}), HasSubstr("MiB"));
  EXPECT_THAT(refusal(graph, {.nodes = 0}), HasSubstr("1 nodes: at most 0"));
  // 2 * 256 results * 27 products, and the bias.
  EXPECT_THAT(refusal(graph, {.operations = 14080}), IsEmpty());
  EXPECT_THAT(refusal(graph, {.operations = 14079}), HasSubstr("operations allowed for one run"));
  Builder builder;
  const int weight = builder.weight({100}, kSingle);
  builder.weight({100}, kSingle);
  builder.output(builder.call("aten::relu", {TensorId{weight}}, {100}, kSingle));
  EXPECT_THAT(refusal(builder.graph(), {.weight_bytes = 800}), IsEmpty());
  EXPECT_THAT(refusal(builder.graph(), {.weight_bytes = 799}), HasSubstr("weights have"));
}

TEST(Admit, NoTensorOfTooManyElements) {
  Builder builder;
  const int x = builder.input({1}, Dtype::kBool);
  const std::int64_t many = std::int64_t{1} << 31;
  builder.output(builder.call("aten::expand", {TensorId{x}, Ints{many}, false}, {many}, Dtype::kBool));
  EXPECT_THAT(refusal(builder.graph(), {.node_bytes = std::int64_t{1} << 40}), Not(IsEmpty()));
  // An empty tensor is refused as well if its other sizes are too large.
  Builder empty;
  const int y = empty.input({0, many}, kSingle);
  empty.output(empty.call("aten::relu", {TensorId{y}}, {0, many}, kSingle));
  EXPECT_THAT(refusal(empty.graph()), HasSubstr("2^31"));
}

TEST(Admit, WholeNumbersAreDividedByPositiveNumbers) {
  const auto dividing = [](const char* name, const Argument& divisor, bool has_mode) {
    Builder builder;
    const int x = builder.input({4}, Dtype::kInt64);
    const int by = builder.input({4}, Dtype::kInt64);
    Args args{TensorId{x}, std::holds_alternative<TensorId>(divisor) ? Argument{TensorId{by}} : divisor};
    if (has_mode) args.emplace_back(Text{"floor"});
    builder.output(builder.call(name, args, {4}, Dtype::kInt64));
    return builder.graph();
  };
  for (const char* name : {"aten::floor_divide", "aten::remainder.Tensor", "aten::fmod.Tensor"}) {
    EXPECT_THAT(refusal(dividing(name, 2, false)), IsEmpty());
    for (const Argument& divisor : {Argument{0}, Argument{-1}, Argument{TensorId{}}}) {
      EXPECT_THAT(refusal(dividing(name, divisor, false)), Not(IsEmpty())) << name;
    }
  }
  EXPECT_THAT(refusal(dividing("aten::div.Tensor_mode", 3, true)), IsEmpty());
  EXPECT_THAT(refusal(dividing("aten::div.Tensor_mode", TensorId{}, true)), HasSubstr("by a tensor"));
}

TEST(Admit, APartOfACallIsHeldToTheSame) {
  const Graph graph = convolving({1, 3, 8, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, {1, 4, 8, 8});
  const Node& node = graph.nodes[0];
  const Tensor weight = graph.tensors[1];
  const std::vector<Tensor> rows{{kSingle, {1, 3, 5, 8}}, weight};
  const std::vector<Change> unpadded{{4, Ints{0, 1}}};
  EXPECT_EQ(admit_call(graph, node, rows, unpadded), (std::vector<Tensor>{{kSingle, {1, 4, 3, 8}}}));
  const std::vector<Tensor> few{{kSingle, {1, 3, 2, 8}}, weight};
  EXPECT_THAT(failure(ErrorKind::kRefused, [&] { admit_call(graph, node, few, unpadded); }), HasSubstr("window"));
  const std::vector<Tensor> wide{{kSingle, {1, 4, 5, 8}}, weight};
  EXPECT_THAT(failure(ErrorKind::kRefused, [&] { admit_call(graph, node, wide, unpadded); }), HasSubstr("channels"));
  const std::vector<Tensor> other{{Dtype::kFloat64, {1, 3, 5, 8}}, {Dtype::kFloat64, {4, 3, 3, 3}}};
  EXPECT_THAT(failure(ErrorKind::kRefused, [&] { admit_call(graph, node, other, unpadded); }),
              HasSubstr("for the whole"));
  const std::vector<Tensor> one{weight};
  EXPECT_THAT(failure(ErrorKind::kInvalidArgument, [&] { admit_call(graph, node, one, unpadded); }),
              HasSubstr("2 tensors"));
  for (const Change& change : {Change{9, 1}, Change{0, TensorId{1}}}) {
    const std::vector<Change> changes{change};
    EXPECT_THAT(failure(ErrorKind::kInvalidArgument, [&] { admit_call(graph, node, rows, changes); }),
                HasSubstr("cannot be changed"));
  }
}

TEST(Admit, TheListHasNothingThatWritesReadsOrWaits) {
  const std::vector<std::string> names = admitted_operators();
  EXPECT_GT(names.size(), 200U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const std::string op = name.substr(0, name.find('.'));
    EXPECT_EQ(op.substr(0, 6), "aten::");
    const bool in_place = op.back() == '_' && op.substr(6, 2) != "__";  // __and__ is not
    EXPECT_FALSE(in_place) << name;
    for (const char* word : {"empty", "rand", "from_file", "print", "as_strided", "resize", "_copy_from", "record"}) {
      EXPECT_THAT(op, Not(HasSubstr(word)));
    }
  }
}

// No argument, too many, and null for all: these do not fit any operator.
// Proves I-8.
TEST(Admit, EveryOperatorLooksAtAllItsArguments) {
  for (const std::string& name : admitted_operators()) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{20}}) {
      const Graph graph = calling(name, {}, [&](const Ids&) { return Args(count); }, {{2}});
      EXPECT_THAT(refusal(graph), Not(IsEmpty())) << name << " with " << count << " arguments";
    }
    for (std::size_t count = 1; count < 10; ++count) {
      const Graph nulls = calling(name, {}, [&](const Ids&) { return Args(count); }, {{2}});
      EXPECT_THAT(refusal(nulls), Not(IsEmpty())) << name << " with null alone";
      const Graph texts = calling(name, {}, [&](const Ids&) { return Args(count, Text{"x"}); }, {{2}});
      EXPECT_THAT(refusal(texts), Not(IsEmpty())) << name << " with texts";
    }
  }
}

// Random arguments of every kind for every operator are refused or admitted; nothing else happens.
TEST(Admit, AnythingIsRefusedOrKnown) {
  const std::vector<std::string> names = admitted_operators();
  test::Dice dice(1);
  int admitted = 0;
  for (int round = 0; round < 40'000; ++round) {
    Builder builder;
    const auto shape = [&] {
      Shape sizes(static_cast<std::size_t>(dice.integer(0, 4)));
      for (std::int64_t& size : sizes) size = dice.integer(0, 4);
      return sizes;
    };
    const auto dtype = [&] { return static_cast<Dtype>(dice.integer(0, 9)); };
    const auto integer = [&] {
      return dice.chance(0.1) ? dice.integer(-kIntegerBound + 1, kIntegerBound - 1) : dice.integer(-2, 4);
    };
    const std::vector<int> inputs{builder.input(shape(), dtype()), builder.input(shape(), dtype())};
    const auto argument = [&]() -> Argument {
      switch (dice.integer(0, 9)) {
        case 0: return {};
        case 1: return dice.chance(0.5);
        case 2: return integer();
        case 3: return dice.chance(0.1) ? std::nan("") : dice.real(-2, 2);
        case 4: return TensorIds{{inputs[0], std::nullopt}};
        case 5: return Ints{integer(), integer()};
        case 6: return Floats{dice.real(-2, 2)};
        case 7: return Text{"constant"};
        case 8: return dtype();
        default: return TensorId{inputs[static_cast<std::size_t>(dice.integer(0, 1))]};
      }
    };
    Args args{TensorId{inputs[0]}};
    for (std::int64_t i = dice.integer(0, 5); i > 0; --i) args.push_back(argument());
    const std::string& name =
        names[static_cast<std::size_t>(dice.integer(0, static_cast<std::int64_t>(names.size()) - 1))];
    builder.output(builder.call(name, args, shape(), dtype()));
    try {
      static_cast<void>(admit_call(builder.graph(), builder.last(), std::vector<Tensor>{}, {}));
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kRefused || error.kind() == ErrorKind::kInvalidArgument) << error.what();
    }
    try {
      admit(builder.graph(), {});
      ++admitted;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRefused) << error.what();
    }
  }
  EXPECT_GT(admitted, 0);
}

// Many inputs, many operands and many nodes with several outputs: each alone is little work, together they are not.
TEST(Admit, GraphsThatTakeLongToDivideAreRefused) {
  const auto joining = [](int inputs, int nodes, int outputs) {
    Builder builder;
    TensorIds all;
    for (int i = 0; i < inputs; ++i) all.ids.emplace_back(builder.input({1, 1}, kSingle));
    int last = 0;
    for (int i = 0; i < nodes; ++i) last = builder.call("aten::cat", {all, 0}, {inputs, 1}, kSingle);
    for (int i = 0; i < nodes; ++i) {
      builder.calls("aten::split.Tensor", {TensorId{all.ids[0].value()}, 1, 0}, {{1, 1}}, kSingle);
      builder.be_list();
    }
    for (int i = 0; i < outputs; ++i) builder.output(last);
    return builder.graph();
  };
  EXPECT_EQ(refusal(joining(160, 300, 160)), "");  // a large model with a cache
  EXPECT_THAT(refusal(joining(900, 100, 1)), HasSubstr("million steps"));
  EXPECT_THAT(refusal(joining(1, 1, 5000)), HasSubstr("has 5000 outputs: at most 4096"));
  const auto in_parts = [](int nodes) {
    Builder builder;
    const int input = builder.input({2, 1}, kSingle);
    for (int i = 0; i < nodes; ++i) {
      builder.calls("aten::split.Tensor", {TensorId{input}, 1, 0}, {{1, 1}, {1, 1}}, kSingle);
      builder.be_list();
    }
    builder.output(input);
    return builder.graph();
  };
  EXPECT_EQ(refusal(in_parts(1000)), "");
  Limits few;
  few.searches = 1e6;
  EXPECT_THAT(refusal(in_parts(1000), few), HasSubstr("1000 of them make several"));
}

TEST(Admit, TheFuzzTargetRunsItsSeeds) {
  const Graph graph = convolving({1, 3, 8, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, {1, 4, 8, 8});
  fuzz::admission(to_json(graph));
  fuzz::admission(to_json(test::any_graph()));
  fuzz::admission("{}");
}

}  // namespace
}  // namespace atl::infer::safety
