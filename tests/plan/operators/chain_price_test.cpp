// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "atoll/plan/operators/policies.h"
#include "atoll/plan/operators/region_grid.h"
#include "stage_cases.h"

namespace atl::plan {
namespace {

using test::any_chain;
using test::any_graph;
using test::any_link;
using test::Dice;
using test::kPower;
using test::Model;
using test::same;
using test::scaled;
using test::window;

double most(const std::vector<Price>& prices) {
  double result = 0;
  for (const Price& price : prices) result = std::max(result, price.whole);
  return result;
}

TEST(ChainPrice, OfThePricesAddUpToOne) {
  Dice dice(91);
  for (int i = 0; i < 100; ++i) {
    const OperatorGraph graph = any_graph(dice, 8, 6);
    const LinkCost link = any_link(dice);
    for (const Price& price : prices_of(graph, stages_of(graph), link, fluid_bound(graph, link))) {
      const double sum = price.robot + price.server + price.up + (link.is_half_duplex ? 0 : price.down);
      ASSERT_NEAR(sum, 1, 1e-9);
      ASSERT_TRUE(!link.is_half_duplex || price.up == price.down);
      ASSERT_EQ(price.rest.size(), stages_of(graph).stages.size() + 1);
      ASSERT_EQ(price.rest.back(), 0);
    }
  }
}

// No plan whose sides make the first and the last rows takes less.
TEST(ChainPrice, IsABoundForEveryPlan) {
  Dice dice(92);
  for (int i = 0; i < 1000; ++i) {
    const OperatorGraph graph = dice.chance(0.5) ? any_graph(dice, 8, 6) : any_chain(dice, 8, 5);
    const LinkCost link = any_link(dice);
    const double bound = most(prices_of(graph, stages_of(graph), link, fluid_bound(graph, link)));
    OperatorOptions options;
    options.seed = static_cast<std::uint64_t>(i);
    options.search.grids = {8};
    options.search.least_gap = 0;
    for (const char* policy : {"random", "cut", "auto", "tensor"}) {
      const double seconds = make_plan(policy, graph, link, kPower, options).seconds;
      ASSERT_GE(seconds, bound * (1 - 1e-9)) << policy << " " << i;
    }
  }
}

// A slice needs no more of its operand than one row, however large that is: counting all of it would be no bound.
TEST(ChainPrice, SlicesAreNotPricedAsWhole) {
  Model model;
  const int input = model.input(8, 10'000'000);
  const Operand first_row{input, [](Region made) { return made.is_empty() ? Region{} : Region{0, 1}; }};
  model.graph.outputs = {model.add(4, 1, 10, 1, {first_row})};
  const LinkCost link{1'000'000, 1'000'000, 0, false};
  const double offload = make_plan("offload", model.graph, link, kPower).seconds;
  EXPECT_NEAR(offload, 2.25, 1e-3);
  const FluidBound bound = fluid_bound(model.graph, link);
  EXPECT_LE(most(prices_of(model.graph, stages_of(model.graph), link, bound)), offload);
}

// For single operators, each with the rows of the one before, the prices of the bound give the bound; of each suffix
// the rest is the price of the model that begins there with either side.
TEST(ChainPrice, IsTheFluidBoundOnChains) {
  Dice dice(93);
  for (int i = 0; i < 200; ++i) {
    Model model;
    int at = model.input(12, dice.integer(1, 100));
    for (int k = 0; k < 6; ++k) {
      const Operand operand = dice.chance(0.5) ? same(at) : window(at, 12, 3, 1, 1);
      at = model.add(12, dice.integer(1, 100), dice.real(0, 10), dice.real(0, 10), {operand});
    }
    model.graph.outputs = {at};
    LinkCost link = any_link(dice);
    link.latency = 0;
    const FluidBound bound = fluid_bound(model.graph, link);
    const std::vector<Price> prices = prices_of(model.graph, stages_of(model.graph), link, bound);
    ASSERT_NEAR(most(prices), bound.seconds, 1e-5 * bound.seconds) << i;
  }
}

FluidBound any_weights() {
  FluidBound bound;
  bound.robot = bound.server = 0.4;
  bound.up = bound.down = 0.2;
  return bound;
}

TEST(ChainPrice, OfABlockCountsTheCheaperSides) {
  Model model;
  const int input = model.input(8, 100);
  const int left = model.add(8, 60, 4, 2, {same(input)});
  const int right = model.add(8, 20, 1, 8, {scaled(input, 8, 8, 1)});
  model.graph.outputs = {model.add(8, 0, 6, 2, {same(left), same(right)})};
  const LinkCost link{10, 10, 0, true};
  for (const Price& price : prices_of(model.graph, stages_of(model.graph), link, any_weights())) {
    const double operators = std::min(4 * price.robot, 2 * price.server) + std::min(price.robot, 8 * price.server) +
                             std::min(6 * price.robot, 2 * price.server);
    // It begins and ends on the robot, so nothing need be sent.
    EXPECT_NEAR(price.whole, operators, 1e-9);
    EXPECT_NEAR(price.rest[0], operators, 1e-9);
  }
}

// A plan that changes sides within a block sends something on every path through it: 60 bytes of the wider one, 20 of
// the narrower.
TEST(ChainPrice, OfChangingSidesIsThatOfTheWidestPath) {
  Model model;
  const int input = model.input(8, 100);
  const int wide = model.add(8, 60, 100, 0, {same(input)});
  const int narrow = model.add(8, 20, 0, 100, {same(input)});
  const int sum = model.add(8, 80, 100, 0, {same(wide), same(narrow)});
  model.graph.outputs = {model.add(8, 0, 100, 0, {same(sum)})};
  const LinkCost link{10, 10, 0, true};
  for (const Price& price : prices_of(model.graph, stages_of(model.graph), link, any_weights())) {
    EXPECT_NEAR(price.whole, std::min(100 * price.robot, 6 * price.up), 1e-9);
    EXPECT_EQ(price.rest[0], 0);
  }
}

}  // namespace
}  // namespace atl::plan
