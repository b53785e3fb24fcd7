// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/guard.h"

#include <cmath>

#include "atoll/plan/operators/trace.h"
#include "tests/plan/operators/split_cases.h"

namespace atl::plan {
namespace {

using test::any_graph;
using test::any_shares;
using test::any_wide_link;
using test::Dice;
using test::input_of;
using test::kNone;
using test::operand_of;
using test::RowNeeds;
using test::trimmed;

// Three operators of 1, 2 and 3 s on the robot and none on the server; 100 bytes go in and 10 come out.
OperatorGraph chain() {
  OperatorGraph graph;
  graph.operators = {input_of(1, 100),
                     {"a", 1, 50, {1, 0}, {}, {{0, {}}}},
                     {"b", 1, 50, {2, 0}, {}, {{1, {}}}},
                     {"c", 1, 10, {3, 0}, {}, {{2, {}}}}};
  graph.outputs = {3};
  check(graph);
  return graph;
}

Guarded watched(const OperatorGraph& graph, const std::vector<Share>& shares, const LinkCost& link, double deadline) {
  Guard guard(graph, shares);
  return guard.watch(simulate(graph, link, {}, shares), link.latency, deadline);
}

TEST(Guard, LocalExecutionBeginsAtTheLastMoment) {
  const OperatorGraph graph = chain();
  const auto shares = everything_on(Side::kServer, graph);
  const Guarded late = watched(graph, shares, {10, 10, 0, false}, 8);  // the answer would come after 11 s
  EXPECT_TRUE(late.is_local);
  EXPECT_DOUBLE_EQ(late.local_begin, 2);
  EXPECT_DOUBLE_EQ(late.seconds, 8);
  EXPECT_DOUBLE_EQ(late.robot_busy, 6);
  EXPECT_DOUBLE_EQ(late.link_end, 8);
}

TEST(Guard, TheFirstAnswerWinsAndLocalExecutionStopsAfterItsOperator) {
  const OperatorGraph graph = chain();
  const auto shares = everything_on(Side::kServer, graph);
  const Guarded early = watched(graph, shares, {100, 10, 0, false}, 6.5);  // the answer comes after 2 s
  EXPECT_FALSE(early.is_local);
  EXPECT_DOUBLE_EQ(early.local_begin, 0.5);
  EXPECT_DOUBLE_EQ(early.seconds, 2);
  EXPECT_DOUBLE_EQ(early.robot_busy, 3);  // a until 1.5, then b
  const Guarded in_time = watched(graph, shares, {100, 10, 0, false}, 8.5);
  EXPECT_TRUE(std::isinf(in_time.local_begin));
  EXPECT_EQ(in_time.robot_busy, 0);
  EXPECT_DOUBLE_EQ(in_time.seconds, 2);
}

TEST(Guard, WhatTheRobotHasComputedIsNotComputedAgain) {
  const OperatorGraph graph = chain();
  const Region all{0, 1};
  const std::vector<Share> shares{{all, kNone}, {all, kNone}, {kNone, all}, {kNone, all}};
  const Guarded guarded = watched(graph, shares, {1, 1, 0, false}, 7);  // 50 s on the link
  EXPECT_TRUE(guarded.is_local);
  EXPECT_DOUBLE_EQ(guarded.local_begin, 2);  // b and c are left
  EXPECT_DOUBLE_EQ(guarded.seconds, 7);
  EXPECT_DOUBLE_EQ(guarded.robot_busy, 6);
}

TEST(Guard, WhatTheRobotHasReceivedIsNotComputed) {
  const OperatorGraph graph = chain();
  const Region all{0, 1};
  // The server makes a and b, the robot c: b arrives after 10 + 50 / rate.
  const std::vector<Share> shares{{all, kNone}, {kNone, all}, {kNone, all}, {all, kNone}};
  const Guarded hasty = watched(graph, shares, {100, 25, 0, false}, 6.2);  // before b is there, after 3 s
  EXPECT_TRUE(hasty.is_local);
  EXPECT_DOUBLE_EQ(hasty.seconds, 6.2);
  const Guarded patient = watched(graph, shares, {100, 25, 0, false}, 9.5);
  EXPECT_TRUE(std::isinf(patient.local_begin));
  EXPECT_DOUBLE_EQ(patient.seconds, 6);
  EXPECT_DOUBLE_EQ(patient.robot_busy, 3);
}

// The robot's half of the rows is no reason to begin the other half later than the deadline allows.
TEST(Guard, CountsRowsThatAreMissing) {
  OperatorGraph graph;
  graph.operators = {input_of(10, 1000), {"conv", 10, 100, {0, 1}, {0, 0.1}, {operand_of(0, 10, 1, 1, 2)}}};
  graph.outputs = {1};
  const std::vector<Share> shares{{{0, 10}, kNone}, {{4, 10}, {0, 4}}};
  const Guarded guarded = watched(graph, shares, {1, 1, 0, false}, 12);
  EXPECT_TRUE(guarded.is_local);
  EXPECT_DOUBLE_EQ(guarded.local_begin, 8);  // 6 rows took until 6; 4 are left
  EXPECT_DOUBLE_EQ(guarded.seconds, 12);
  EXPECT_DOUBLE_EQ(guarded.robot_busy, 10);
}

// An operator of the plan that leaves too little time does not begin: its rows have the fixed cost once more.
TEST(Guard, DoesNotBeginWhatLeavesTooLittleTime) {
  OperatorGraph graph;
  graph.operators = {input_of(10, 1000), {"conv", 10, 100, {5, 0.5}, {0, 0.1}, {operand_of(0, 10, 1, 1, 2)}}};
  graph.outputs = {1};
  const std::vector<Share> shares{{{0, 10}, kNone}, {{4, 10}, {0, 4}}};
  const Guarded tight = watched(graph, shares, {1, 1, 0, false}, 12);  // 8 s for 6 rows, 7 for the rest
  EXPECT_TRUE(tight.is_local);
  EXPECT_DOUBLE_EQ(tight.local_begin, 2);
  EXPECT_DOUBLE_EQ(tight.seconds, 12);
  EXPECT_DOUBLE_EQ(tight.robot_busy, 10);
  EXPECT_DOUBLE_EQ(tight.link_end, 2);
  const Guarded loose = watched(graph, shares, {1, 1, 0, false}, 16);
  EXPECT_DOUBLE_EQ(loose.local_begin, 9);
  EXPECT_DOUBLE_EQ(loose.robot_busy, 15);
}

TEST(Guard, WhereTheRobotAloneIsTooSlowThePlanHasUntilTheDeadline) {
  const OperatorGraph graph = chain();
  const auto shares = everything_on(Side::kServer, graph);
  const Guarded served = watched(graph, shares, {100, 10, 0, false}, 3);
  EXPECT_FALSE(served.is_local);
  EXPECT_TRUE(std::isinf(served.local_begin));
  const Guarded lost = watched(graph, shares, {1, 1, 0, false}, 3);
  EXPECT_DOUBLE_EQ(lost.local_begin, 3);
  EXPECT_DOUBLE_EQ(lost.seconds, 9);
}

TEST(Guard, ADeadlineIsKeptWhereItCanBe) {
  EXPECT_EQ(guarded_deadline(3.0, 2), 3);
  EXPECT_EQ(guarded_deadline(2.0, 2), 2);
  EXPECT_EQ(guarded_deadline(1.7, 2), 1.7) << "it is tried";
  EXPECT_EQ(guarded_deadline(1.5, 2), 3.5);
  EXPECT_EQ(guarded_deadline(-1.0, 2), 2) << "it has passed already";
  EXPECT_EQ(guarded_deadline({}, 2), 4);
}

// For any plan and link: an answer by the deadline where the robot alone would have one; never later than without a
// guard, but for the local execution of what was stopped; nothing computed for longer than both ways together.
// Proves P-10.
TEST(Guard, KeepsTheDeadlineForAnyPlan) {
  Dice dice(321);
  int local = 0;
  int stopped = 0;
  for (int i = 0; i < 600; ++i) {
    const OperatorGraph graph = any_graph(dice, 14, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, true);
    const std::vector<Share> shares = trimmed(graph, any_shares(dice, graph));
    Guard guard(graph, shares);
    const Timeline timeline = simulate(graph, link, {}, shares);
    const double alone = simulate(graph, link, {}, everything_on(Side::kRobot, graph)).robot_busy;
    const double deadline = alone * dice.real(1, 2) + 1e-6;
    const Guarded guarded = guard.watch(timeline, link.latency, deadline);
    ASSERT_LE(guarded.seconds, deadline * (1 + 1e-6)) << i;
    ASSERT_LE(guarded.seconds, std::max(timeline.seconds, guarded.local_begin + alone) * (1 + 1e-9)) << i;
    ASSERT_LE(guarded.robot_busy, timeline.robot_busy + alone + 1e-9) << i;
    ASSERT_LE(guarded.link_end, guarded.seconds + 1e-9) << i;
    if (timeline.seconds <= guarded.local_begin) {
      ASSERT_EQ(guarded.seconds, timeline.seconds) << i;
      ASSERT_NEAR(guarded.robot_busy, timeline.robot_busy, 1e-9) << i;
    }
    if (guarded.is_local) ++local;
    if (!guarded.is_local && std::isfinite(guarded.local_begin)) ++stopped;
  }
  EXPECT_GT(local, 60);
  EXPECT_GT(stopped, 5);
}

}  // namespace
}  // namespace atl::plan
