// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/cuts.h"

#include <cmath>

#include "atoll/plan/operators/timeline.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan {
namespace {

using test::any_graph;
using test::any_wide_link;
using test::Dice;
using test::each_layer_plan;
using test::input_of;
using test::refusal;
using test::RowNeeds;
using test::whole_totals;

double price_of(const Totals& totals, const CutWeights& weights) {
  return weights.robot * totals.robot_seconds + weights.server * totals.server_seconds + weights.up * totals.up_bytes +
         weights.down * totals.down_bytes;
}

TEST(LayerCuts, TheCheapestEqualsBruteForce) {
  Dice dice(81);
  for (int i = 0; i < 250; ++i) {
    const OperatorGraph graph = any_graph(dice, 5, RowNeeds::kAny);
    check(graph);
    CutGraph cuts(graph);
    for (int k = 0; k < 4; ++k) {
      const auto weight = [&](double most) { return dice.chance(0.15) ? 0 : dice.real(0, most); };
      const CutWeights weights{weight(2), weight(2), weight(0.01), weight(0.01)};
      double least = HUGE_VAL;
      each_layer_plan(graph, [&](const Totals& totals) { least = std::min(least, price_of(totals, weights)); });
      const LayerCut cut = cuts.cheapest(weights);
      ASSERT_NEAR(cut.value, least, 1e-9 * (1 + least)) << i;
      ASSERT_NEAR(price_of(cut.totals, weights), least, 1e-9 * (1 + least)) << i;
      const Totals used = whole_totals(graph, cut.shares);
      ASSERT_NEAR(used.robot_seconds, cut.totals.robot_seconds, 1e-9);
      ASSERT_NEAR(used.server_seconds, cut.totals.server_seconds, 1e-9);
      ASSERT_EQ(used.up_bytes, cut.totals.up_bytes);
      ASSERT_EQ(used.down_bytes, cut.totals.down_bytes);
      OperatorGraph whole = graph;
      for (Operator& each : whole.operators) {
        for (Operand& operand : each.operands) operand.needed = {};
      }
      ASSERT_EQ(test::trimmed(whole, cut.shares), cut.shares) << "computes what nobody uses";
    }
  }
}

TEST(LayerCuts, TheBestEqualsBruteForceWithoutLatency) {
  Dice dice(82);
  for (int i = 0; i < 400; ++i) {
    const OperatorGraph graph = any_graph(dice, 5, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, true);
    LinkCost without = link;
    without.latency = 0;
    double least = HUGE_VAL;
    double least_without = HUGE_VAL;
    each_layer_plan(graph, [&](const Totals& totals) {
      least = std::min(least, serial_seconds(totals, link));
      least_without = std::min(least_without, serial_seconds(totals, without));
    });
    const double found = serial_seconds(whole_totals(graph, best_layer_cut(graph, link)), link);
    ASSERT_GE(found, least - 1e-9);
    ASSERT_LE(found, least_without + 2 * link.latency + 1e-9);
    if (link.latency == 0) {
      ASSERT_NEAR(found, least, 1e-9 * (1 + least)) << i;
    }
    for (const Side side : {Side::kRobot, Side::kServer}) {
      ASSERT_LE(found, serial_seconds(whole_totals(graph, everything_on(side, graph)), link) + 1e-9);
    }
  }
}

// Something is always busy until the end, so what runs side by side only saves.
TEST(LayerCuts, TakeNoLongerThanOneAfterTheOther) {
  Dice dice(83);
  for (int i = 0; i < 300; ++i) {
    const OperatorGraph graph = any_graph(dice, 30, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, false);
    const auto shares = best_layer_cut(graph, link);
    const double serial = serial_seconds(whole_totals(graph, shares), link);
    ASSERT_LE(simulate(graph, link, {}, shares).seconds, serial * (1 + 1e-9)) << i;
  }
}

// Two halves of a network want the same cheap operator, whose output is large.
TEST(LayerCuts, BothSidesMayComputeAnOperator) {
  OperatorGraph graph;
  graph.operators = {input_of(1, 100),
                     {"cheap", 1, 10'000, {0.01, 0}, {0.01, 0}, {{0, {}}}},
                     {"slow", 1, 10'000, {100, 0}, {1, 0}, {{1, {}}}},
                     {"small", 1, 1, {100, 0}, {0.01, 0}, {{2, {}}}},
                     {"near", 1, 10'000, {1, 0}, {1, 0}, {{1, {}}, {3, {}}}}};
  graph.outputs = {4};
  const std::vector<Share> shares = best_layer_cut(graph, {1000, 1000, 0, false});
  const Region all{0, 1};
  EXPECT_EQ(shares, (std::vector<Share>{{all, {}}, {all, all}, {{}, all}, {{}, all}, {all, {}}}));
}

TEST(LayerCuts, LeaveOutWhatNothingNeeds) {
  OperatorGraph graph;
  graph.operators = {
      input_of(4, 100), {"wanted", 4, 10, {0, 1}, {0, 1}, {{0, {}}}}, {"unwanted", 4, 10, {0, 1}, {0, 1}, {{1, {}}}}};
  graph.outputs = {1};
  EXPECT_EQ(best_layer_cut(graph, {1, 1, 0, false})[2], Share{});
  EXPECT_EQ(everything_on(Side::kServer, graph)[2], (Share{{}, {0, 4}}));
  const CutGraph cuts(graph);
  EXPECT_TRUE(cuts.is_wanted(1));
  EXPECT_FALSE(cuts.is_wanted(2));
}

TEST(LayerCuts, OneGraphServesManyLinks) {
  Dice dice(84);
  const OperatorGraph graph = any_graph(dice, 40, RowNeeds::kAny);
  CutGraph cuts(graph);
  for (int i = 0; i < 50; ++i) {
    const LinkCost link = any_wide_link(dice, true);
    ASSERT_EQ(best_layer_cut(cuts, link).shares, best_layer_cut(graph, link));
  }
}

struct EnergyCase {
  double found = 0;
  double least = HUGE_VAL;
};

EnergyCase energy_case(Dice& dice) {
  const OperatorGraph graph = any_graph(dice, 5, RowNeeds::kAny);
  const LinkCost link = any_wide_link(dice, true);
  const RobotPower power{dice.real(5, 20), dice.real(1, 5), dice.real(0, 2)};
  const Totals shortest = whole_totals(graph, best_layer_cut(graph, link));
  const double deadline = serial_seconds(shortest, link) * dice.real(1, 2) + 1e-9;
  EnergyCase result;
  each_layer_plan(graph, [&](const Totals& totals) {
    if (serial_seconds(totals, link) > deadline) return;
    result.least = std::min(result.least, serial_joules(totals, link, power));
  });
  const Totals found = whole_totals(graph, energy_cut(graph, link, power, deadline));
  EXPECT_LE(serial_seconds(found, link), deadline + 1e-9);
  result.found = serial_joules(found, link, power);
  EXPECT_GE(result.found, result.least - 1e-9);
  EXPECT_LE(result.found, serial_joules(shortest, link, power) + 1e-9);
  return result;
}

TEST(LayerCuts, TheEnergyIsNearTheLeastWithinTheDeadline) {
  Dice dice(85);
  constexpr int kCases = 400;
  int optimal = 0;
  double excess = 0;
  double most = 0;
  for (int i = 0; i < kCases; ++i) {
    const EnergyCase each = energy_case(dice);
    const double over = each.least > 0 ? each.found / each.least - 1 : 0;
    excess += over / kCases;
    most = std::max(most, over);
    if (over < 1e-9) ++optimal;
  }
  RecordProperty("optimal", optimal);
  RecordProperty("mean_excess_percent", std::to_string(100 * excess));
  RecordProperty("most_excess_percent", std::to_string(100 * most));
  EXPECT_GT(optimal, kCases * 95 / 100);
  EXPECT_LT(excess, 0.005);
}

TEST(LayerCuts, TheEnergyWithoutAndBeyondADeadline) {
  Dice dice(86);
  for (int i = 0; i < 200; ++i) {
    const OperatorGraph graph = any_graph(dice, 5, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, false);
    const RobotPower power;
    double least = HUGE_VAL;
    each_layer_plan(graph, [&](const Totals& totals) { least = std::min(least, serial_joules(totals, link, power)); });
    const Totals found = whole_totals(graph, energy_cut(graph, link, power, HUGE_VAL));
    ASSERT_NEAR(serial_joules(found, link, power), least, 1e-9 * (1 + least)) << i;
    ASSERT_EQ(energy_cut(graph, link, power, -1), best_layer_cut(graph, link));
  }
}

TEST(LayerCuts, NamesWhatIsWrong) {
  const auto message = [](const std::function<void(OperatorGraph&)>& spoil) {
    OperatorGraph graph;
    graph.operators = {input_of(4, 100), {"conv", 4, 10, {0, 1}, {0, 1}, {test::operand_of(0, 4, 1, 1, 2)}}};
    graph.outputs = {1};
    check(graph);
    spoil(graph);
    return refusal([&] { best_layer_cut(graph, {1, 1, 0, false}); });
  };
  const auto expect = [&](const std::string& text, const std::function<void(OperatorGraph&)>& spoil) {
    EXPECT_NE(message(spoil).find(text), std::string::npos) << message(spoil);
  };
  expect("operator 1 (conv) takes operand 1",
         [](OperatorGraph& graph) { graph.operators[1].operands[0].producer = 1; });
  expect("operator 1 (conv) takes operand -1",
         [](OperatorGraph& graph) { graph.operators[1].operands[0].producer = -1; });
  expect("operator 1 (conv).robot.fixed is -1", [](OperatorGraph& graph) { graph.operators[1].robot.fixed = -1; });
  expect("operator 1 (conv).server.per_row is inf",
         [](OperatorGraph& graph) { graph.operators[1].server.per_row = HUGE_VAL; });
  expect("operator 1 (conv) has -1 bytes", [](OperatorGraph& graph) { graph.operators[1].bytes = -1; });
  expect("operator 1 (conv) has 0 rows", [](OperatorGraph& graph) { graph.operators[1].rows = 0; });
  expect("operator 1 (conv) has 1 row, which is not split", [](OperatorGraph& graph) { graph.operators[1].rows = 1; });
  expect("operator 0 (input) has 1 row, which is not split", [](OperatorGraph& graph) { graph.operators[0].rows = 1; });
  expect("operator 0 (input) has no operands, so it is an input",
         [](OperatorGraph& graph) { graph.operators[0].server.per_row = 1; });
  expect("a graph has no outputs", [](OperatorGraph& graph) { graph.outputs.clear(); });
  expect("output 2 is not one of the 2 operators", [](OperatorGraph& graph) { graph.outputs = {2}; });
  expect("output -1", [](OperatorGraph& graph) { graph.outputs = {-1}; });
  OperatorGraph graph;
  graph.operators = {input_of(4, 100)};
  graph.outputs = {0};
  for (const double rate : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_NE(refusal([&] {
                best_layer_cut(graph, {1, rate, 0, false});
              }).find("down_bytes_per_second"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                best_layer_cut(graph, {rate, 1, 0, false});
              }).find("up_bytes_per_second"),
              std::string::npos);
  }
  EXPECT_NE(refusal([&] { best_layer_cut(graph, {1, 1, -1, false}); }).find("latency is -1"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
