// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/fluid_bound.h"

#include <cmath>

#include "atoll/plan/operators/timeline.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan {
namespace {

using test::any_graph;
using test::any_shares;
using test::any_wide_link;
using test::Dice;
using test::each_layer_plan;
using test::input_of;
using test::refusal;
using test::RowNeeds;
using test::trimmed;
using test::whole_totals;

double least_sum(const std::vector<Amounts>& columns, const Amounts& weights) {
  double least = HUGE_VAL;
  for (const Amounts& column : columns) {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * column[i];
    least = std::min(least, sum);
  }
  return least;
}

TEST(WeightGame, EqualsASearchOfAllWeights) {
  Dice dice(91);
  for (int i = 0; i < 300; ++i) {
    std::vector<Amounts> columns(static_cast<std::size_t>(dice.integer(1, 12)));
    for (Amounts& column : columns) {
      for (double& amount : column) amount = dice.chance(0.2) ? 0 : dice.real(0, 10);
    }
    const WeightGame game = solve_weights(columns);
    double sum = 0;
    for (const double weight : game.weights) {
      ASSERT_GE(weight, 0);
      sum += weight;
    }
    ASSERT_NEAR(sum, 1, 1e-9);
    ASSERT_NEAR(least_sum(columns, game.weights), game.value, 1e-9) << i;
    constexpr int kSteps = 12;
    for (int a = 0; a <= kSteps; ++a) {
      for (int b = 0; a + b <= kSteps; ++b) {
        for (int c = 0; a + b + c <= kSteps; ++c) {
          const double step = 1.0 / kSteps;
          const Amounts weights{a * step, b * step, c * step, (kSteps - a - b - c) * step};
          ASSERT_LE(least_sum(columns, weights), game.value + 1e-9) << i;
        }
      }
    }
  }
}

TEST(WeightGame, SimpleOnes) {
  EXPECT_EQ(solve_weights(std::vector<Amounts>{{1, 2, 3, 4}}).value, 4);
  EXPECT_EQ(solve_weights(std::vector<Amounts>{{0, 0, 0, 0}, {1, 1, 1, 1}}).value, 0);
  EXPECT_NEAR(solve_weights(std::vector<Amounts>{{1, 0, 0, 0}, {0, 1, 0, 0}}).value, 0.5, 1e-12);
  EXPECT_NEAR(solve_weights(std::vector<Amounts>{{4, 0, 0, 0}, {0, 1, 0, 0}}).value, 0.8, 1e-12);
}

// Any plan that may beat the bound is tried: any needs, any regions, streamed, with latency.
// Proves P-2.
TEST(FluidBound, NoPlanIsFaster) {
  Dice dice(92);
  int near = 0;
  for (int i = 0; i < 400; ++i) {
    const OperatorGraph graph = any_graph(dice, dice.integer(1, 20), RowNeeds::kAny);
    check(graph);
    FluidBounds bounds(graph);
    for (int k = 0; k < 3; ++k) {
      const LinkCost link = any_wide_link(dice, true);
      const double bound = bounds.at(link).seconds;
      ASSERT_GE(bound, 0);
      double fastest = HUGE_VAL;
      const auto expect_slower = [&](const std::vector<Share>& shares, int chunks) {
        const double seconds = simulate(graph, link, {}, trimmed(graph, shares), chunks).seconds;
        ASSERT_LE(bound, simulate(graph, link, {}, shares, chunks).seconds * (1 + 1e-9) + 1e-12);
        ASSERT_LE(bound, seconds * (1 + 1e-9) + 1e-12) << i << ", " << chunks << " chunks";
        fastest = std::min(fastest, seconds);
      };
      expect_slower(best_layer_cut(graph, link), 1);
      expect_slower(everything_on(Side::kRobot, graph), 1);
      for (const int chunks : {1, 2, 8}) expect_slower(everything_on(Side::kServer, graph), chunks);
      for (int n = 0; n < 30; ++n) expect_slower(any_shares(dice, graph), static_cast<int>(dice.integer(1, 4)));
      if (bound > 0.5 * fastest) ++near;
    }
  }
  EXPECT_GT(near, 400);
}

// By its definition: the game against every plan of whole operators.
TEST(FluidBound, EqualsTheGameOverAllPlans) {
  Dice dice(93);
  for (int i = 0; i < 250; ++i) {
    const OperatorGraph graph = any_graph(dice, 5, RowNeeds::kProportional);
    const LinkCost link = any_wide_link(dice, false);
    std::vector<Amounts> columns;
    each_layer_plan(graph, [&](const Totals& totals) {
      const double up = totals.up_bytes / link.up_bytes_per_second;
      const double down = totals.down_bytes / link.down_bytes_per_second;
      columns.push_back({totals.robot_seconds, totals.server_seconds, link.is_half_duplex ? up + down : up,
                         link.is_half_duplex ? 0 : down});
    });
    const double value = solve_weights(columns).value;
    const FluidBound bound = fluid_bound(graph, link);
    ASSERT_NEAR(bound.seconds, value, 2e-6 * value) << i;
    ASSERT_LE(bound.seconds, value * (1 + 1e-9));
    const double sum = bound.robot + bound.server + bound.up + (link.is_half_duplex ? 0 : bound.down);
    ASSERT_NEAR(sum, 1, 1e-9);
  }
}

TEST(FluidBound, OverlapGainsNoMoreThanItsResources) {
  Dice dice(94);
  for (int i = 0; i < 300; ++i) {
    const OperatorGraph graph = any_graph(dice, 40, RowNeeds::kProportional);
    const LinkCost link = any_wide_link(dice, false);
    const double serial = serial_seconds(whole_totals(graph, best_layer_cut(graph, link)), link);
    const double bound = fluid_bound(graph, link).seconds;
    ASSERT_LE(bound, serial * (1 + 1e-9));
    ASSERT_LE(serial, (link.is_half_duplex ? 3 : 4) * bound * (1 + 2e-6) + 1e-9) << i;
  }
}

TEST(FluidBound, WhatOneLinkShowedServesTheNext) {
  Dice dice(95);
  int fresh_cuts = 0;
  int kept_cuts = 0;
  for (int i = 0; i < 20; ++i) {
    const OperatorGraph graph = any_graph(dice, 100, RowNeeds::kProportional);
    FluidBounds bounds(graph);
    for (int rate = 0; rate < 32; ++rate) {
      const LinkCost link{100 * std::pow(1.3, rate), 100 * std::pow(1.3, rate), 0.01, true};
      const FluidBound kept = bounds.at(link);
      const FluidBound fresh = fluid_bound(graph, link);
      ASSERT_NEAR(kept.seconds, fresh.seconds, 3e-6 * fresh.seconds) << i;
      kept_cuts += kept.cuts;
      fresh_cuts += fresh.cuts;
    }
  }
  EXPECT_LT(kept_cuts, fresh_cuts);
}

// Robot and server halve one operator; each is as busy as the other.
TEST(FluidBound, OfOneOperator) {
  OperatorGraph graph;
  graph.operators = {input_of(100, 0), {"conv", 100, 0, {0, 0.03}, {0, 0.01}, {test::operand_of(0, 100, 1, 1, 2)}}};
  graph.outputs = {1};
  const FluidBound bound = fluid_bound(graph, {1, 1, 0, true});
  EXPECT_NEAR(bound.seconds, 0.75, 1e-6);  // 3 r = 1 s, r + s = 1
  EXPECT_NEAR(bound.robot, 0.25, 1e-6);
  EXPECT_NEAR(bound.server, 0.75, 1e-6);
  const FluidBound late = fluid_bound(graph, {1, 1, 0.1, true});
  EXPECT_NEAR(late.seconds, 0.9, 1e-6);  // 3 r = s + 0.2
  const FluidBound useless = fluid_bound(graph, {1, 1, 2, true});
  EXPECT_NEAR(useless.seconds, 3, 1e-9);
  EXPECT_EQ(useless.robot, 1);
}

// Four operators take every second row each, as detection networks do with their images. Together they need
// everything, and the bound says so but for a row's worth.
TEST(FluidBound, RowsThatAreSkippedCostLittle) {
  OperatorGraph graph;
  graph.operators.push_back(input_of(200, 40'000));
  for (int i = 0; i < 4; ++i) {
    const std::int64_t first = i % 2;
    graph.operators.push_back({"every second row", 100, 10'000, {0, 0.001}, {0, 0.0001}, {}});
    graph.operators.back().operands.push_back({0, [first](Region region) {
                                                 return Region{2 * region.begin + first, 2 * region.end - 1 + first};
                                               }});
  }
  graph.operators.push_back({"cat", 100, 40'000, {0, 0.01}, {0, 0.001}, {}});
  for (int i = 1; i <= 4; ++i) graph.operators.back().operands.push_back(test::share_of(i, 100, 100));
  graph.operators.push_back({"head", 1, 10, {1, 0}, {0.1, 0}, {}});
  graph.operators.back().operands.push_back({5, {}});
  graph.outputs = {6};
  check(graph);
  OperatorGraph whole = graph;
  for (int i = 1; i <= 4; ++i) whole.operators[static_cast<std::size_t>(i)].operands = {test::share_of(0, 200, 100)};
  for (const double rate : {5e3, 2e4, 1e5, 1e6}) {
    const LinkCost link{rate, rate, 0, true};
    const double bound = fluid_bound(graph, link).seconds;
    const double of_whole = fluid_bound(whole, link).seconds;
    EXPECT_LE(bound, of_whole * (1 + 1e-9));
    EXPECT_GE(bound, 0.95 * of_whole) << rate;
  }
}

// The fastest plan in each of these sends, or computes, a small part of what a share of the rows would say.
TEST(FluidBound, CountsOnlyWhatIsNeeded) {
  const auto expect = [](const OperatorGraph& graph, const std::vector<Share>& shares, double seconds) {
    check(graph);
    const LinkCost link{1000, 1000, 0, true};
    const double fastest = simulate(graph, link, {}, shares).seconds;
    ASSERT_NEAR(fastest, seconds, 1e-9);
    const FluidBound bound = fluid_bound(graph, link);
    EXPECT_LE(bound.seconds, fastest * (1 + 1e-9));
    EXPECT_GT(bound.seconds, 0);
  };
  OperatorGraph graph;
  graph.outputs = {2};
  const Operator head{"head", 10, 0, {0, 10}, {0, 0.001}, {test::operand_of(1, 10, 1, 0, 1)}};
  // A slice of the input: 100 of 1000 bytes.
  graph.operators = {input_of(100, 1000), {"slice", 10, 1000, {}, {}, {test::operand_of(0, 100, 1, 0, 1)}}, head};
  expect(graph, trimmed(graph, everything_on(Side::kServer, graph)), 0.1 + 0.01);
  // A slice of what costs something: 10 of 100 rows.
  graph.operators = {
      input_of(100, 0), {"conv", 100, 1000, {0, 10}, {0, 0.1}, {test::operand_of(0, 100, 1, 0, 1)}}, head};
  graph.operators[2].operands = {test::operand_of(1, 100, 1, 0, 1)};
  expect(graph, trimmed(graph, everything_on(Side::kServer, graph)), 1 + 0.01);
  // Padding: the server computes it from nothing.
  graph.operators = {input_of(2, 10'000), {"pad", 10, 0, {0, 0.1}, {}, {test::operand_of(0, 2, 1, 4, -3)}}};
  graph.outputs = {1};
  expect(graph, {{{0, 2}, {}}, {{4, 10}, {0, 4}}}, 0.6);
}

TEST(FluidBound, NothingToDo) {
  OperatorGraph graph;
  graph.operators = {input_of(3, 100)};
  graph.outputs = {0};
  EXPECT_EQ(fluid_bound(graph, {1, 1, 0, true}).seconds, 0);
  EXPECT_NE(refusal([&] { fluid_bound(graph, {0, 1, 0, true}); }).find("up_bytes_per_second"), std::string::npos);
  graph.outputs.clear();
  EXPECT_NE(refusal([&] { fluid_bound(graph, {1, 1, 0, true}); }).find("no outputs"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
