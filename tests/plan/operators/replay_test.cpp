// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/replay.h"

#include <cmath>

#include "atoll/plan/operators/guard.h"
#include "atoll/plan/operators/policies.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan {
namespace {

using test::any_graph;
using test::any_shares;
using test::any_wide_link;
using test::Dice;
using test::input_of;
using test::refusal;
using test::RowNeeds;
using test::trimmed;

constexpr RobotPower kReplayPower{10, 4, 1};

// 6 s on the robot, nothing on the server; 100 bytes up and none down.
OperatorGraph one_operator() {
  OperatorGraph graph;
  graph.operators = {input_of(1, 100), {"all", 1, 0, {6, 0}, {}, {{0, {}}}}};
  graph.outputs = {1};
  return graph;
}

OperatorPlan plan_of(const OperatorGraph& graph, const std::string& policy) {
  return make_plan(policy, graph, {100, 100, 0, false}, kReplayPower);
}

Chooser always(std::size_t plan) {
  return [plan](const Moment&) -> Choice { return {plan, 1}; };
}

TEST(Replay, OverAConstantTraceEqualsSimulate) {
  Dice dice(331);
  for (int i = 0; i < 200; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, true);
    OperatorPlan plan;
    plan.shares = trimmed(graph, any_shares(dice, graph));
    plan.chunks = dice.chance(0.5) ? 1 : static_cast<int>(dice.integer(2, 5));
    const Timeline timeline = simulate(graph, link, kReplayPower, plan.shares, plan.chunks);
    const Trace trace(dice.real(0.1, 2), {link.up_bytes_per_second}, {link.down_bytes_per_second});
    ReplayOptions options;
    options.latency = link.latency;
    options.is_half_duplex = link.is_half_duplex;
    options.begin = dice.real(0, 10);
    options.length = timeline.seconds * 2.5 + 1;
    options.period = timeline.seconds + 0.5;
    const std::vector<OperatorPlan> plans{plan};
    for (const Served& served : replay(graph, trace, kReplayPower, plans, always(0), options)) {
      const double near = 1e-7 * (1 + timeline.seconds);
      ASSERT_NEAR(served.seconds, timeline.seconds, near) << i;
      ASSERT_NEAR(served.joules, timeline.joules, 10 * near) << i;
      ASSERT_NEAR(served.link_busy, timeline.link_busy, 10 * near) << i;
      ASSERT_EQ(served.robot_busy, timeline.robot_busy) << i;
      ASSERT_NEAR(served.up_bytes, timeline.up_bytes, 1e-3) << i;
      ASSERT_NEAR(served.down_bytes, timeline.down_bytes, 1e-3) << i;
      ASSERT_FALSE(served.is_guarded);
    }
  }
}

TEST(Replay, CarriesMessagesAtTheRateOfTheMoment) {
  const OperatorGraph graph = one_operator();
  const Trace trace(1, {50, 0, 100});
  ReplayOptions options;
  options.length = 6;
  const std::vector<OperatorPlan> plans{plan_of(graph, "offload")};
  const auto served = replay(graph, trace, kReplayPower, plans, always(0), options);
  // 50 bytes by 1, the rest by 2.5; from there 50 by 3, 50 by 4; from 4 nothing until 5, 100 by 6.
  ASSERT_EQ(served.size(), 3U);
  EXPECT_DOUBLE_EQ(served[0].seconds, 2.5);
  EXPECT_DOUBLE_EQ(served[1].begin, 2.5);
  EXPECT_DOUBLE_EQ(served[1].seconds, 1.5);
  EXPECT_DOUBLE_EQ(served[2].seconds, 2);
  EXPECT_DOUBLE_EQ(served[0].joules, 2.5 * (4 + 1));
}

TEST(Replay, InferencesThatTakeNoTimeBeginInEveryPeriod) {
  OperatorGraph graph = one_operator();
  graph.operators.back().robot = {};
  const Trace trace(0.5, {100});
  const std::vector<OperatorPlan> plans{plan_of(graph, "local")};
  ReplayOptions options;
  options.begin = 3.45;
  options.length = 1;
  options.period = 0.25;
  const auto served = replay(graph, trace, kReplayPower, plans, always(0), options);
  ASSERT_EQ(served.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(served[i].seconds, 0);
    EXPECT_DOUBLE_EQ(served[i].begin, 3.45 + 0.25 * static_cast<double>(i));
  }
}

TEST(Replay, TooManyInferencesAreRefused) {
  OperatorGraph graph = one_operator();
  graph.operators.back().robot = {};
  const Trace trace(0.5, {100});
  const std::vector<OperatorPlan> plans{plan_of(graph, "local")};
  ReplayOptions options;
  options.length = 1;
  options.period = 1e-9;
  const std::string text = refusal([&] { replay(graph, trace, kReplayPower, plans, always(0), options); });
  EXPECT_NE(text.find("give a longer period"), std::string::npos) << text;
}

TEST(Replay, ATraceThatIsAlwaysZeroEndsLocally) {
  const OperatorGraph graph = one_operator();
  const Trace trace(0.5, {0, 0});
  const std::vector<OperatorPlan> plans{plan_of(graph, "offload")};
  ReplayOptions options;
  options.length = 30;
  EXPECT_NE(refusal([&] { replay(graph, trace, kReplayPower, plans, always(0), options); }).find("never answered"),
            std::string::npos);
  options.deadline = 7.5;
  const auto served = replay(graph, trace, kReplayPower, plans, always(0), options);
  ASSERT_EQ(served.size(), 4U);
  for (const Served& each : served) {
    EXPECT_TRUE(each.is_local);
    EXPECT_DOUBLE_EQ(each.seconds, 7.5);
    EXPECT_EQ(each.up_bytes, 0);
    EXPECT_DOUBLE_EQ(each.joules, 6 * 10 + 1.5 * 4 + 7.5 * 1);
  }
}

TEST(Replay, EnergyAddsUpAndTheGuardKeepsTheDeadline) {
  Dice dice(332);
  int local = 0;
  for (int i = 0; i < 100; ++i) {
    const OperatorGraph graph = any_graph(dice, 10, RowNeeds::kAny);
    const double alone = graph.robot_seconds();
    if (alone == 0) continue;
    std::vector<double> rates;
    for (int k = 0; k < 20; ++k) rates.push_back(dice.chance(0.3) ? 0 : std::exp(dice.real(3, 9)));
    const Trace trace(dice.real(0.1, 1) * alone, rates);
    OperatorPlan plan;
    plan.shares = trimmed(graph, any_shares(dice, graph));
    const std::vector<OperatorPlan> plans{plan};
    ReplayOptions options;
    options.period = alone / 3;
    options.deadline = alone * dice.real(1, 1.5);
    double before = -1;
    for (const Served& each : replay(graph, trace, kReplayPower, plans, always(0), options)) {
      ASSERT_GE(each.begin, before - 1e-9);
      before = each.begin + each.seconds;
      ASSERT_LE(each.seconds, *options.deadline * (1 + 1e-6));
      ASSERT_NEAR(each.joules, joules(kReplayPower, each.seconds, each.robot_busy, each.link_busy), 1e-9);
      ASSERT_LE(each.link_busy, 2 * each.seconds + 1e-9);
      const double periods = each.begin / options.period;
      ASSERT_NEAR(periods, std::round(periods), 1e-6);
      if (each.is_local) ++local;
    }
  }
  EXPECT_GT(local, 50);
}

TEST(Replay, InferencesApartHaveTheLinkForThemselves) {
  const OperatorGraph graph = one_operator();
  const Trace trace(1, {10});
  const std::vector<OperatorPlan> plans{plan_of(graph, "offload")};
  ReplayOptions options;
  options.period = 3;
  options.length = 9;
  EXPECT_EQ(replay(graph, trace, kReplayPower, plans, always(0), options).size(), 1U);
  options.is_apart = true;
  const auto served = replay(graph, trace, kReplayPower, plans, always(0), options);
  ASSERT_EQ(served.size(), 3U);
  for (const Served& each : served) EXPECT_DOUBLE_EQ(each.seconds, 10);
  EXPECT_DOUBLE_EQ(served[2].begin, 6);
}

PlanTable table_of(const OperatorGraph& graph) {
  TableOptions options;
  options.least_rate = 1;
  options.most_rate = 1000;
  return make_table(graph, {100, 100, 0, false}, kReplayPower, options);
}

// The offload takes 1 s and 5 s in turn, because rates last for 20 s. A chooser that uses the last rate is late each
// time.
TEST(Replay, ChoosersDifferInWhatTheyKnow) {
  const OperatorGraph graph = one_operator();
  const PlanTable table = table_of(graph);
  ASSERT_EQ(table.plans.size(), 2U);
  std::vector<double> rates(40, 100);
  for (std::size_t i = 20; i < 40; ++i) rates[i] = 5;
  const Trace trace(1, rates);
  const LinkPast past(1, rates);
  ReplayOptions options;
  options.length = 400;
  options.period = 1;
  options.is_apart = true;
  const auto mean = [&](const Chooser& choose) {
    std::vector<double> seconds;
    for (const Served& each : replay(graph, trace, kReplayPower, table.plans, choose, options)) {
      seconds.push_back(each.seconds);
    }
    return spread_of(seconds);
  };
  ChooserOptions every_bin;
  every_bin.forecast = "last";
  every_bin.sees_every_bin = true;
  const Spread oracle = mean(choose_by_oracle(graph, trace, table));
  const Spread last = mean(choose_by_forecast(table, past, every_bin));
  const Spread offload = mean([](const Moment&) -> Choice { return {1, 1}; });
  EXPECT_LT(oracle.mean, last.mean);
  EXPECT_LT(last.mean, offload.mean);
  EXPECT_LE(oracle.most, 6 + 1e-9);
  EXPECT_GT(offload.most, 10);
  const Spread by_rate = mean(choose_by_rate({20}, {6, 1}));
  EXPECT_DOUBLE_EQ(by_rate.mean, last.mean);  // they know the same, and change at the same rate
}

// After an outage nothing was sent, so nothing was measured; the estimate ages and the server is tried again.
TEST(Replay, PassiveEstimatesDoNotLockThemselvesLow) {
  const OperatorGraph graph = one_operator();
  const PlanTable table = table_of(graph);
  std::vector<double> rates(200, 100);
  for (std::size_t i = 5; i < 15; ++i) rates[i] = 1;
  const Trace trace(1, rates);
  const LinkPast past(1, {100, 100, 100, 1, 1, 100, 100, 100});
  ReplayOptions options;
  options.deadline = guarded_deadline({}, graph.robot_seconds());
  for (const char* forecast : {"aged", "ar1", "neighbours", "long-run"}) {
    ChooserOptions how;
    how.forecast = forecast;
    how.most_seconds = *options.deadline;
    const auto served = replay(graph, trace, kReplayPower, table.plans, choose_by_forecast(table, past, how), options);
    ASSERT_FALSE(served.empty());
    EXPECT_LT(served.back().seconds, 2) << forecast;
    for (const Served& each : served) EXPECT_LE(each.seconds, *options.deadline * (1 + 1e-9)) << forecast;
  }
}

TEST(Replay, SpreadsAreOfValuesThatOccur) {
  const Spread spread = spread_of({4, 1, 2, 3});
  EXPECT_EQ(spread.mean, 2.5);
  EXPECT_EQ(spread.median, 2);
  EXPECT_EQ(spread.p95, 4);
  EXPECT_EQ(spread.most, 4);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt(1.25));
  EXPECT_EQ(spread_of({}).mean, 0);
}

TEST(Replay, NamesWhatIsWrong) {
  OperatorGraph graph = one_operator();
  const Trace trace(1, {100});
  const std::vector<OperatorPlan> plans{plan_of(graph, "local")};
  const auto message = [&](const ReplayOptions& options) {
    return refusal([&] { replay(graph, trace, kReplayPower, plans, always(0), options); });
  };
  ReplayOptions options;
  options.period = -1;
  EXPECT_NE(message(options).find("the period of a replay is -1"), std::string::npos);
  options.period = 0;
  options.is_apart = true;
  EXPECT_NE(message(options).find("give a period above 0"), std::string::npos);
  options.is_apart = false;
  options.deadline = -1;
  EXPECT_NE(message(options).find("the deadline is -1"), std::string::npos);
  options.deadline.reset();
  graph.operators[1].robot = {};
  EXPECT_NE(message(options).find("takes no time"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
