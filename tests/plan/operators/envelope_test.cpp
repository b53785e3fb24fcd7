// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/envelope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "atoll/plan/operators/policies.h"
#include "atoll/plan/operators/timeline.h"
#include "stage_cases.h"

namespace atl::plan {
namespace {

using test::any_chain;
using test::any_graph;
using test::any_link;
using test::Dice;
using test::kPower;
using test::Model;
using test::refusal;
using test::same;

std::vector<RateWeight> always(double rate) { return {{rate, 1}}; }

LinkCost scaled_to(LinkCost link, double rate) {
  link.down_bytes_per_second *= rate / link.up_bytes_per_second;
  link.up_bytes_per_second = rate;
  return link;
}

TableOptions small_rates() {
  TableOptions options;
  options.least_rate = 1;
  options.most_rate = 1000;
  options.rates = 24;
  options.search_seconds = 1000;
  options.search.grids = {4, 8};
  return options;
}

double simulated(const OperatorGraph& graph, const LinkCost& link, const OperatorPlan& plan) {
  return simulate(graph, link, kPower, plan.shares, plan.chunks).seconds;
}

TEST(Envelope, IsNowhereWorseThanSimplePlans) {
  Dice dice(81);
  std::size_t plans = 0;
  for (int i = 0; i < 60; ++i) {
    const OperatorGraph graph = any_chain(dice, 16, 7);
    const LinkCost link = any_link(dice, false);
    const TableOptions options = small_rates();
    const PlanTable table = make_table(graph, link, kPower, options);
    ASSERT_TRUE(table.is_complete);
    ASSERT_EQ(table.rates.size(), 24U);
    ASSERT_DOUBLE_EQ(table.rates.front(), 1);
    ASSERT_DOUBLE_EQ(table.rates.back(), 1000);
    ASSERT_EQ(table.plans.front().policy, "local");
    for (const double rate : table.rates) {
      const LinkCost there = scaled_to(link, rate);
      const std::size_t chosen = table.choose(always(rate));
      const double seconds = simulated(graph, there, table.plans[chosen]);
      ASSERT_NEAR(table.seconds_at(chosen, rate), seconds, 1e-7 * seconds) << i;
      for (const char* policy : {"local", "offload", "stream", "cut"}) {
        const double other = make_plan(policy, graph, there, kPower).seconds;
        ASSERT_LE(seconds, other * (1 + 2.1 * options.margin) + 1e-9) << policy << " " << i << " " << rate;
      }
    }
    plans += table.plans.size();
  }
  EXPECT_GT(plans, 120U);
  EXPECT_LT(plans, 600U);
}

// The times of a table are bounds between and outside its rates, because they are convex over 1 / rate.
TEST(Envelope, TimesAreBoundsAtAnyRate) {
  Dice dice(82);
  for (int i = 0; i < 60; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, 6);
    const LinkCost link = any_link(dice, false);
    const PlanTable table = make_table(graph, link, kPower, small_rates());
    for (int k = 0; k < 20; ++k) {
      const double rate = std::exp(dice.real(std::log(0.2), std::log(5000.0)));
      for (std::size_t plan = 0; plan < table.plans.size(); ++plan) {
        const double seconds = simulated(graph, scaled_to(link, rate), table.plans[plan]);
        ASSERT_GE(table.seconds_at(plan, rate), seconds * (1 - 1e-6)) << i << " " << rate;
      }
    }
  }
}

TEST(Envelope, PlansOfAnySharesAreConvexInTheTimePerByte) {
  Dice dice(83);
  for (int i = 0; i < 300; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, 6);
    const LinkCost link = any_link(dice, false);
    OperatorOptions options;
    options.seed = static_cast<std::uint64_t>(i);
    const OperatorPlan plan = make_plan("random", graph, link, kPower, options);
    const double slow = dice.real(0.01, 1);
    const double fast = dice.real(0.001, slow);
    const double low = simulated(graph, scaled_to(link, 1 / slow), plan);
    const double high = simulated(graph, scaled_to(link, 1 / fast), plan);
    const double middle = simulated(graph, scaled_to(link, 2 / (slow + fast)), plan);
    ASSERT_LE(middle, (low + high) / 2 + 1e-9) << i;
    ASSERT_LE(high, low + 1e-9) << i;
  }
}

// Operators of 1 s on the robot and none on the server, after 1000, 400, 100 and 30 bytes: each of the five ways to
// stay on the robot for a while and then to leave is the best one at some rate.
TEST(Envelope, HasAllCutsThatAreBestSomewhere) {
  Model model;
  int at = model.input(1, 1000);
  for (const std::int64_t bytes : {400, 100, 30, 0}) at = model.add(1, bytes, 1, 0, {test::whole(at)});
  model.graph.outputs = {at};
  TableOptions options = small_rates();
  options.searches = 0;
  const PlanTable table = make_table(model.graph, LinkCost{1, 1, 0, false}, kPower, options);
  EXPECT_EQ(table.plans.size(), 5U);
  for (const double rate : {15.0, 45.0, 150.0, 450.0, 900.0}) {
    const double best = std::min({4.0, 3 + 30 / rate, 2 + 100 / rate, 1 + 400 / rate, 1000 / rate});
    EXPECT_NEAR(table.seconds_at(table.choose(always(rate)), rate), best, 1e-6) << rate;
  }
}

// One operator: on the robot 10 s; on the server 1 s, after 100 bytes up and before 10 down. They take the same at a
// rate of 110 / 9.
PlanTable two_plans() {
  Model model;
  const int input = model.input(4, 100);
  model.graph.outputs = {model.add(1, 10, 10, 1, {test::whole(input)})};
  TableOptions options = small_rates();
  options.margin = 0;
  return make_table(model.graph, LinkCost{1, 1, 0, false}, kPower, options);
}

TEST(Envelope, ChoosesByRate) {
  const PlanTable table = two_plans();
  ASSERT_EQ(table.plans.size(), 2U);
  EXPECT_EQ(table.plans[0].policy, "local");
  EXPECT_EQ(table.plans[1].policy, "offload");
  EXPECT_EQ(table.choose(always(0.0)), 0U);
  EXPECT_EQ(table.choose(always(0.01)), 0U);
  EXPECT_EQ(table.choose(always(110 / 9.0 - 0.1)), 0U);
  EXPECT_EQ(table.choose(always(110 / 9.0 + 0.1)), 1U);
  EXPECT_EQ(table.choose(always(1e6)), 1U);
  EXPECT_DOUBLE_EQ(table.seconds_at(1, 0.5), 1 + 110 / 0.5);
  EXPECT_NEAR(table.seconds_at(1, 37), 1 + 110 / 37.0, 1e-9);
  EXPECT_TRUE(std::isinf(table.seconds_at(1, 0)));
}

TEST(Envelope, ChoosesByDistribution) {
  const PlanTable table = two_plans();
  // Offload takes 2.1 s at a rate of 100 and 23 s at 5: on average less than 10 s while the slow one is rarer than 7.9
  // in 20.9.
  const double even = 7.9 / 20.9;
  const auto likely = [](double slow) { return std::vector<RateWeight>{{5, slow}, {100, 1 - slow}}; };
  EXPECT_EQ(table.choose(likely(even - 0.01)), 1U);
  EXPECT_EQ(table.choose(likely(even + 0.01)), 0U);
  EXPECT_EQ(table.choose(likely(0.1), 0.95), 0U);
  EXPECT_EQ(table.choose(likely(0.1), 0.89), 1U);
  EXPECT_EQ(table.choose(likely(0.04), 0.95), 1U);
  EXPECT_EQ(table.choose(likely(0.04), 1), 0U);
  // An outage: no mean is finite but that of the local plan.
  EXPECT_EQ(table.choose(std::vector<RateWeight>{{0, 0.01}, {1000, 0.99}}), 0U);
  EXPECT_EQ(table.choose(std::vector<RateWeight>{{0, 0.01}, {1000, 0.99}}, 0.5), 1U);
  EXPECT_EQ(table.choose(std::vector<RateWeight>{{0, 0}, {1000, 3}}), 1U);
}

TEST(Envelope, PrefersWhatIsSimpler) {
  Model model;
  int at = model.input(40, 1);
  for (int i = 0; i < 8; ++i) at = model.add(40, 1, 1, 1, {same(at)});
  model.graph.outputs = {at};
  TableOptions options = small_rates();
  const LinkCost link{1000, 1000, 1e-6, false};
  options.margin = 0.001;
  const PlanTable split = make_table(model.graph, link, kPower, options);
  EXPECT_EQ(split.plans[split.choose(always(1000.0))].policy, "regions");
  options.margin = 2;
  EXPECT_EQ(make_table(model.graph, link, kPower, options).plans.size(), 1U);
}

TEST(Envelope, SaysWhenTheTimeIsUp) {
  Dice dice(84);
  TableOptions options = small_rates();
  options.search_seconds = 0;
  const PlanTable table = make_table(any_chain(dice, 16, 7), any_link(dice), kPower, options);
  EXPECT_FALSE(table.is_complete);
  EXPECT_EQ(table.plans.front().policy, "local");
}

TEST(Envelope, RefusesWhatItCannotUse) {
  Dice dice(85);
  const OperatorGraph graph = any_chain(dice, 8, 3);
  const LinkCost link{1, 1, 0, false};
  TableOptions options;
  options.rates = 1;
  EXPECT_NE(refusal([&] { make_table(graph, link, kPower, options); }).find("1 rate:"), std::string::npos);
  options = {};
  options.least_rate = 0;
  EXPECT_NE(refusal([&] { make_table(graph, link, kPower, options); }).find("from 0 to"), std::string::npos);
  const PlanTable table = two_plans();
  EXPECT_NE(refusal([&] { table.choose(std::vector<RateWeight>{{-1, 1}}); }).find("rate is -1"), std::string::npos);
  EXPECT_NE(refusal([&] { table.choose(std::vector<RateWeight>{}); }).find("add up to 0"), std::string::npos);
  const std::vector<RateWeight> sure{{1, 1}};
  EXPECT_NE(refusal([&] { table.choose(sure, 0.0); }).find("quantile is 0"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
