// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/operators/operators.h"
#include "tests/infer/infer_cases.h"

namespace atl::infer::operators {
namespace {

using test::Builder;
using test::Dice;

// A rule of an operator that no server admits would never be used.
TEST(Table, EveryRuleBelongsToAnAdmittedOperator) {
  std::size_t rules = 0;
  for (const auto& [name, known] : table()) {
    EXPECT_TRUE(known.admit) << name;
    const bool has_more = known.rule.slice || known.rule.partial_bytes || known.rule.partial;
    EXPECT_TRUE(known.rule.split || !has_more) << name << " has half a rule";
    EXPECT_TRUE(known.rule.partial_bytes || !known.rule.partial) << name << " has states of unknown size";
    if (known.rule.split) ++rules;
  }
  EXPECT_GT(rules, 200U);
  EXPECT_LT(rules, table().size());
}

Argument any_argument(Dice& dice, const std::vector<int>& inputs) {
  const auto integer = [&] {
    return dice.chance(0.05) ? dice.integer(-kIntegerBound + 1, kIntegerBound - 1) : dice.integer(-2, 4);
  };
  const auto tensor = [&] { return inputs[static_cast<std::size_t>(dice.integer(0, 2))]; };
  switch (dice.integer(0, 11)) {
    case 0: return {};
    case 1: return dice.chance(0.5);
    case 2:
    case 3: return integer();
    case 4: return dice.chance(0.1) ? std::nan("") : dice.real(-2, 2);
    case 5: return TensorIds{{tensor(), dice.chance(0.3) ? std::optional<int>() : tensor()}};
    case 6: return Ints{integer(), integer()};
    case 7: return Ints(static_cast<std::size_t>(dice.integer(0, 3)), dice.integer(0, 3));
    case 8: return Floats{dice.real(-2, 2)};
    case 9: return Text{dice.chance(0.5) ? "constant" : "same"};
    default: return TensorId{tensor()};
  }
}

// A random call of `name`, which declares what it makes if it is admitted.
Graph any_call(Dice& dice, const std::string& name) {
  Builder builder;
  const Dtype dtype = dice.chance(0.8) ? Dtype::kFloat32 : static_cast<Dtype>(dice.integer(0, 9));
  std::vector<int> inputs;
  for (int i = 0; i < 3; ++i) {
    Shape shape(static_cast<std::size_t>(dice.integer(0, 4)));
    for (std::int64_t& size : shape) size = dice.integer(dice.chance(0.1) ? 0 : 1, 4);
    inputs.push_back(builder.input(shape, dtype));
  }
  std::vector<Argument> args{TensorId{inputs[0]}};
  for (std::int64_t i = dice.integer(0, 8); i > 0; --i) args.push_back(any_argument(dice, inputs));
  builder.call(name, std::move(args), {2, 2}, dtype);
  return builder.graph();
}

std::vector<Tensor> types_in(const Graph& graph) {
  std::vector<Tensor> types;
  for (const int id : operands_of(graph.nodes[0])) types.push_back(graph.tensors[static_cast<std::size_t>(id)]);
  return types;
}

// Asks for everything that a rule may tell of a node.
void ask(const Rule& rule, const NodeView& view) {
  for (int dim = 0; dim < view.output_rank(); ++dim) static_cast<void>(rule.split(view, dim));
  for (std::size_t operand = 0; operand < view.operands(); ++operand) {
    for (int dim = 0; dim < view.rank(operand); ++dim) {
      if (rule.partial_bytes) static_cast<void>(rule.partial_bytes(view, operand, dim));
      if (rule.partial) static_cast<void>(rule.partial(view, operand, dim));
    }
  }
}

// Admission and rule read the same arguments with the same parser: what the one takes, the other can read; what the one
// refuses is unfit for the other, or has rows all the same.
TEST(Table, ARuleReadsEveryCallThatIsAdmitted) {
  Dice dice(2);
  std::set<std::string> read;
  for (int round = 0; round < 200; ++round) {
    for (const auto& [name, known] : table()) {
      if (!known.rule.split) continue;
      Graph graph = any_call(dice, name);
      const std::vector<Tensor> types = types_in(graph);
      bool is_admitted = true;
      try {
        const Made made = known.admit(CallView(name, graph.nodes[0].args, types, known.takes_empty));
        if (!made.outputs.empty()) graph.tensors.back() = made.outputs.front();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRefused) << error.what();
        is_admitted = false;
      }
      try {
        ask(known.rule, NodeView(graph, graph.nodes[0]));
        if (is_admitted) read.insert(name);
      } catch (const UnfitCall& error) {
        EXPECT_FALSE(is_admitted) << error.what();
      }
    }
  }
  EXPECT_GT(read.size(), 100U);
}

}  // namespace
}  // namespace atl::infer::operators
