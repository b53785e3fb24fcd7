// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/region_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "atoll/plan/operators/timeline.h"
#include "stage_cases.h"

namespace atl::plan {
namespace {

using test::any_chain;
using test::any_graph;
using test::any_link;
using test::Dice;
using test::exact;
using test::kFastLink;
using test::kPower;
using test::Model;
using test::refusal;
using test::same;
using test::window;

/// Returns the least predicted time over all regions at the exits of all stages: the server [0, end), the robot [begin,
/// rows).
double brute_force(const OperatorGraph& graph, const LinkCost& link) {
  const StageChain chain = stages_of(graph);
  std::vector<Meeting> meetings(chain.stages.size());
  double best = HUGE_VAL;
  const std::function<void(std::size_t)> choose = [&](std::size_t stage) {
    if (stage == meetings.size()) {
      best = std::min(best, simulate(graph, link, kPower, shares_through(graph, chain, meetings), 1).seconds);
      return;
    }
    for (std::int64_t end = 0; end <= chain.stages[stage].rows; ++end) {
      for (std::int64_t begin = 0; begin <= end; ++begin) {
        meetings[stage] = {static_cast<int>(stage), end, begin};
        choose(stage + 1);
      }
    }
  };
  choose(0);
  return best;
}

double fastest_simple(const OperatorGraph& graph, const LinkCost& link, int chunks) {
  return fastest(simple_plans(graph, link, kPower, chunks)).seconds;
}

TEST(RegionSearch, EqualsBruteForceOnChains) {
  Dice dice(61);
  int improved = 0;
  for (int i = 0; i < 600; ++i) {
    const bool is_wide = i % 3 == 0;
    const OperatorGraph graph = any_chain(dice, is_wide ? 5 : 3, is_wide ? static_cast<int>(dice.integer(1, 3)) : 4);
    const LinkCost link = any_link(dice, false);
    const double best = brute_force(graph, link);
    const RegionPlan found = search_regions(graph, link, kPower, exact(5));
    ASSERT_NEAR(found.plan.seconds, best, 1e-9) << i;
    ASSERT_TRUE(found.is_complete);
    if (found.plan.policy == "regions") ++improved;
  }
  EXPECT_GT(improved, 20);
}

// The fastest partial plan has sent more, which the next message waits for: the slower one wins.
TEST(RegionSearch, KeepsPlansWhoseLinkIsFreeEarlier) {
  Model model;
  int at = model.input(3, 39);
  at = model.add(3, 42, 2.083, 6.961, {window(at, 3, 3, 1, 1)}, 0.41);
  at = model.add(3, 88, 4.399, 8.799, {window(at, 3, 3, 1, 1)});
  at = model.add(3, 50, 9.762, 0, {same(at)});
  at = model.add(3, 59, 7.622, 0, {window(at, 3, 5, 1, 2)}, 0.317);
  model.graph.outputs = {at};
  const LinkCost link{7.582, 93.39, 0, false};
  EXPECT_NEAR(search_regions(model.graph, link, kPower, exact(3)).plan.seconds, brute_force(model.graph, link), 1e-9);
}

// With branches and a shared link the clocks of the search are not the prediction's, but the plan is one of those that
// brute force tries.
TEST(RegionSearch, StaysBetweenBruteForceAndSimplePlans) {
  Dice dice(62);
  int checked = 0;
  int best_ones = 0;
  for (int i = 0; checked < 150; ++i) {
    const OperatorGraph graph = any_graph(dice, 4, static_cast<int>(dice.integer(1, 5)));
    const StageChain chain = stages_of(graph);
    double plans = 1;
    for (const Stage& stage : chain.stages) plans *= static_cast<double>((stage.rows + 1) * (stage.rows + 2)) / 2;
    if (plans > 2000) continue;
    ++checked;
    const LinkCost link = any_link(dice);
    const double simple = fastest_simple(graph, link, 1);
    const double best = std::min(simple, brute_force(graph, link));
    const RegionPlan found = search_regions(graph, link, kPower, exact(4));
    ASSERT_LE(found.plan.seconds, simple) << i;
    ASSERT_GE(found.plan.seconds, best - 1e-9) << i;
    ASSERT_GE(found.plan.seconds, found.bound * (1 - 1e-6)) << i;
    if (found.plan.seconds <= best + 1e-9) ++best_ones;
  }
  EXPECT_GT(best_ones, checked * 8 / 10);
}

TEST(RegionSearch, PredictsWhatItReturns) {
  Dice dice(63);
  for (int i = 0; i < 100; ++i) {
    const OperatorGraph graph = dice.chance(0.5) ? any_graph(dice, 30, 8) : any_chain(dice, 60, 8);
    const LinkCost link = any_link(dice);
    SearchOptions options;
    options.seconds = 1000;
    options.least_gap = 0;
    const RegionPlan found = search_regions(graph, link, kPower, options);
    OperatorPlan again = found.plan;
    predict(graph, link, kPower, again);
    ASSERT_EQ(found.plan, again) << i;
    ASSERT_LE(found.plan.seconds, fastest_simple(graph, link, options.chunks)) << i;
    ASSERT_EQ(search_regions(graph, link, kPower, options).plan, found.plan) << i;
  }
}

// Both sides as fast, and a link that hardly matters: half of the rows each.
OperatorGraph halves(int operators) {
  Model model;
  int at = model.input(56, 56);
  for (int i = 0; i < operators; ++i) at = model.add(56, 56, 1, 1, {i % 2 == 0 ? window(at, 56, 3, 1, 1) : same(at)});
  model.graph.outputs = {at};
  return std::move(model.graph);
}

TEST(RegionSearch, DividesWhereThatPays) {
  const OperatorGraph graph = halves(10);
  SearchOptions options;
  options.seconds = 1000;
  const RegionPlan found = search_regions(graph, kFastLink, kPower, options);
  EXPECT_EQ(found.plan.policy, "regions");
  EXPECT_TRUE(found.is_searched);
  EXPECT_LT(found.plan.seconds, 0.55 * fastest_simple(graph, kFastLink, 8));
  EXPECT_GE(found.plan.seconds, found.bound * (1 - 1e-6));
}

// The link takes 6 s for the input, the server 6 s for the rest, the robot 12 s. Streamed in 8 chunks that is 6.75 s,
// divided without streaming 5.4 s, and both together about 4.3 s.
TEST(RegionSearch, DividesAfterAStream) {
  Model model;
  int at = model.input(64, 600);
  for (int i = 0; i < 3; ++i) at = model.add(64, 1, 4, 2, {same(at)});
  model.graph.outputs = {model.add(1, 1, 0.01, 0.01, {test::whole(at)})};
  const LinkCost link{100, 100, 0, false};
  SearchOptions options;
  options.seconds = 1000;
  const RegionPlan found = search_regions(model.graph, link, kPower, options);
  EXPECT_EQ(found.plan.policy, "regions");
  EXPECT_EQ(found.plan.chunks, 8);
  EXPECT_LT(found.plan.seconds, 4.7);
  options.chunks = 1;
  EXPECT_GT(search_regions(model.graph, link, kPower, options).plan.seconds, 5.3);
}

TEST(RegionSearch, FinerGridsOnlyImprove) {
  Dice dice(64);
  for (int i = 0; i < 30; ++i) {
    const OperatorGraph graph = any_chain(dice, 56, 6);
    const LinkCost link = any_link(dice);
    SearchOptions coarse;
    coarse.grids = {7};
    coarse.seconds = 1000;
    SearchOptions fine = coarse;
    fine.grids = {7, 14, 28};
    EXPECT_LE(search_regions(graph, link, kPower, fine).plan.seconds,
              search_regions(graph, link, kPower, coarse).plan.seconds);
  }
}

TEST(RegionSearch, EpsilonCostsNoMoreThanItSays) {
  Dice dice(65);
  std::int64_t exact_labels = 0;
  std::int64_t rounded_labels = 0;
  for (int i = 0; i < 60; ++i) {
    const OperatorGraph graph = any_chain(dice, 20, 6);
    const LinkCost link = any_link(dice, false);
    SearchOptions options = exact(10);
    const RegionPlan best = search_regions(graph, link, kPower, options);
    options.epsilon = 0.05;
    const RegionPlan near = search_regions(graph, link, kPower, options);
    ASSERT_LE(near.plan.seconds, best.plan.seconds + 0.05 * fastest_simple(graph, link, 1) + 1e-9) << i;
    exact_labels += best.labels;
    rounded_labels += near.labels;
  }
  EXPECT_LT(rounded_labels, exact_labels);
}

TEST(RegionSearch, LeavesOutTensorsOfLongChains) {
  const OperatorGraph graph = halves(60);
  SearchOptions options;
  options.seconds = 1000;
  options.most_meetings = 5;
  const RegionPlan few = search_regions(graph, kFastLink, kPower, options);
  EXPECT_EQ(few.plan.policy, "regions");
  options.most_meetings = 1;
  const RegionPlan one = search_regions(graph, kFastLink, kPower, options);
  EXPECT_LT(few.plan.seconds, one.plan.seconds);
  EXPECT_LT(one.labels, few.labels);
}

TEST(RegionSearch, SaysWhenTheTimeIsUp) {
  SearchOptions options;
  options.seconds = 0;
  const RegionPlan found = search_regions(halves(10), kFastLink, kPower, options);
  EXPECT_TRUE(found.is_searched);
  EXPECT_FALSE(found.is_complete);
  EXPECT_EQ(found.plan.policy, "local");
}

TEST(RegionSearch, DoesNotSearchWhereTheBoundIsNear) {
  SearchOptions options;
  options.least_gap = 0.6;  // dividing saves at most half
  const RegionPlan found = search_regions(halves(10), kFastLink, kPower, options);
  EXPECT_FALSE(found.is_searched);
  EXPECT_EQ(found.labels, 0);
  EXPECT_EQ(found.plan.policy, "local");
}

TEST(RegionSearch, RefusesAGridWithoutParts) {
  SearchOptions options;
  options.grids = {0};
  EXPECT_NE(refusal([&] { search_regions(halves(4), kFastLink, kPower, options); }).find("0 parts"), std::string::npos);
}

// Half of the rows on either side take the robot 3 s, the link 4.5 s; everything takes 6 s on the robot and 8 s on the
// server. The last divided tensor is larger than those after it.
TEST(RegionSearch, LongChainsMeetBeforeTheirGlobalTail) {
  Model model;
  int at = model.input(8, 800);
  for (int i = 0; i < 30; ++i) at = model.add(8, i == 29 ? 100 : 4000, 0.2, 0.01, {same(at)});
  for (int i = 0; i < 6; ++i) at = model.add(1, 10, 0.001, 0.001, {test::whole(at)});
  model.graph.outputs = {at};
  SearchOptions options;
  options.grids = {4, 8};
  options.seconds = 1000;
  const RegionPlan found = search_regions(model.graph, {100, 100, 0, true}, kPower, options);
  EXPECT_EQ(found.plan.policy, "regions");
  EXPECT_LT(found.plan.seconds, 4.8);
}

TEST(RegionSearch, AModelThatComputesNothingStaysOnTheRobot) {
  Model model;
  model.graph.outputs = {model.input(8, 10)};
  const RegionPlan found = search_regions(model.graph, kFastLink, kPower);
  EXPECT_EQ(found.plan.seconds, 0);
  EXPECT_FALSE(found.is_searched);
}

}  // namespace
}  // namespace atl::plan
