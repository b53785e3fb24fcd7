// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/timeline.h"

#include <cmath>
#include <map>

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
using test::refusal;
using test::RowNeeds;

// 10 rows of 100 bytes; a convolution over three rows, and what reads all of it.
OperatorGraph small_graph() {
  OperatorGraph graph;
  graph.operators = {input_of(10, 1000),
                     {"conv", 10, 500, {0, 1}, {0.5, 0.1}, {operand_of(0, 10, 1, 1, 2)}},
                     {"head", 1, 50, {2, 0}, {0.2, 0}, {{1, {}}}}};
  graph.outputs = {2};
  check(graph);
  return graph;
}

double least_begin(const Timeline& timeline, Lane lane, int index) {
  double begin = HUGE_VAL;
  for (const Event& event : timeline.events) {
    if (event.lane == lane && event.operator_index == index) begin = std::min(begin, event.begin);
  }
  return begin;
}

double most_end(const Timeline& timeline, Lane lane, int index) {
  double end = -1;
  for (const Event& event : timeline.events) {
    if (event.lane == lane && event.operator_index == index) end = std::max(end, event.end);
  }
  return end;
}

TEST(Timeline, OfOneSide) {
  const OperatorGraph graph = small_graph();
  const LinkCost link{100, 50, 0.25, false};
  const Timeline local = simulate(graph, link, {10, 4, 1}, everything_on(Side::kRobot, graph));
  EXPECT_DOUBLE_EQ(local.seconds, 12);
  EXPECT_DOUBLE_EQ(local.robot_busy, 12);
  EXPECT_EQ(local.server_busy, 0);
  EXPECT_EQ(local.up_bytes + local.down_bytes, 0);
  EXPECT_DOUBLE_EQ(local.joules, 120);
  EXPECT_EQ(local.events.size(), 2U);

  const Timeline offload = simulate(graph, link, {10, 4, 1}, everything_on(Side::kServer, graph));
  EXPECT_DOUBLE_EQ(offload.seconds, 10 + 0.25 + 1.5 + 0.2 + 1 + 0.25);
  EXPECT_EQ(offload.robot_busy, 0);
  EXPECT_DOUBLE_EQ(offload.server_busy, 1.7);
  EXPECT_EQ(offload.up_bytes, 1000);
  EXPECT_EQ(offload.down_bytes, 50);
  EXPECT_DOUBLE_EQ(offload.joules, 4 * offload.seconds + 1 * 11);
  EXPECT_EQ(offload.rows_twice, 0);
}

TEST(Timeline, OfALinkThatChanges) {
  const OperatorGraph graph = small_graph();
  const auto shares = everything_on(Side::kServer, graph);
  // Nothing moves before 10; then 100 bytes a second.
  const Channel late{[](Lane, double begin, double bytes) { return std::max(begin, 10.0) + bytes / 100; }, 0.25, false};
  const Timeline timeline = simulate(graph, late, {10, 4, 1}, shares);
  EXPECT_DOUBLE_EQ(timeline.seconds, 20 + 0.25 + 1.7 + 0.5 + 0.25);
  EXPECT_DOUBLE_EQ(timeline.link_busy, 20 + 0.5);
  EXPECT_DOUBLE_EQ(timeline.joules, 4 * timeline.seconds + 20.5);
  EXPECT_EQ(timeline.received[2], std::vector<Region>({{0, 1}}));
  EXPECT_TRUE(timeline.received[1].empty());
  const Channel never{[](Lane, double, double) { return HUGE_VAL; }, 0.25, true};
  for (const int chunks : {1, 3}) EXPECT_TRUE(std::isinf(simulate(graph, never, {}, shares, chunks).seconds));
  EXPECT_DOUBLE_EQ(simulate(graph, never, {}, everything_on(Side::kRobot, graph)).seconds, 12);
}

// The server computes rows [0, 4) from input rows [0, 5), the robot [3, 10) and the head.
TEST(Timeline, OfRegions) {
  const OperatorGraph graph = small_graph();
  const std::vector<Share> shares{{{0, 10}, kNone}, {{3, 10}, {0, 4}}, {{0, 1}, kNone}};
  const Timeline timeline = simulate(graph, {100, 50, 0.25, false}, {}, shares);
  EXPECT_EQ(timeline.up_bytes, 500);
  EXPECT_EQ(timeline.down_bytes, 150);  // rows [0, 3) of 50 bytes
  EXPECT_DOUBLE_EQ(timeline.robot_busy, 7 + 2);
  EXPECT_DOUBLE_EQ(timeline.server_busy, 0.5 + 0.4);
  EXPECT_DOUBLE_EQ(timeline.rows_twice, 1);
  EXPECT_DOUBLE_EQ(most_end(timeline, Lane::kServer, 1), 5 + 0.25 + 0.9);
  EXPECT_DOUBLE_EQ(most_end(timeline, Lane::kDown, 1), 6.15 + 3);
  EXPECT_DOUBLE_EQ(timeline.seconds, 9.15 + 0.25 + 2);
}

TEST(Timeline, AHalfDuplexLinkSendsOneMessageAtATime) {
  OperatorGraph graph;
  graph.operators = {input_of(1, 100),
                     {"server's", 1, 100, {9, 0}, {1, 0}, {{0, {}}}},
                     {"robot's", 1, 100, {2.5, 0}, {9, 0}, {{0, {}}}},
                     {"robot wants it", 1, 1, {1, 0}, {9, 0}, {{1, {}}}},
                     {"server wants it", 1, 100, {9, 0}, {1, 0}, {{2, {}}}}};
  graph.outputs = {3, 4};
  const Region all{0, 1};
  const std::vector<Share> shares{{all, kNone}, {kNone, all}, {all, kNone}, {all, kNone}, {kNone, all}};
  // Up: [0, 1) and from 2.5. Down: from 2, and when the server has done the rest.
  const Timeline full = simulate(graph, {100, 100, 0, false}, {}, shares);
  EXPECT_DOUBLE_EQ(most_end(full, Lane::kDown, 1), 3);
  EXPECT_DOUBLE_EQ(most_end(full, Lane::kUp, 2), 3.5);
  EXPECT_DOUBLE_EQ(most_end(full, Lane::kRobot, 3), 4);
  EXPECT_DOUBLE_EQ(full.seconds, 3.5 + 1 + 1);
  const Timeline half = simulate(graph, {100, 100, 0, true}, {}, shares);
  EXPECT_DOUBLE_EQ(most_end(half, Lane::kDown, 1), 3);
  EXPECT_DOUBLE_EQ(most_end(half, Lane::kUp, 2), 4);
  EXPECT_DOUBLE_EQ(half.seconds, 4 + 1 + 1);
}

// Two operators on the server take separate rows of one tensor: one message, without the rows between.
TEST(Timeline, OneMessageHoldsExactlyTheRowsThatLack) {
  OperatorGraph graph;
  graph.operators = {input_of(100, 1000),
                     {"low", 5, 10, {0, 1}, {0, 1}, {operand_of(0, 100, 1, 0, 1)}},
                     {"high", 5, 10, {0, 1}, {0, 1}, {operand_of(0, 100, 1, -95, 96)}},
                     {"both", 5, 10, {0, 1}, {0, 1}, {operand_of(1, 5, 1, 0, 1), operand_of(2, 5, 1, 0, 1)}}};
  graph.outputs = {3};
  const Timeline timeline = simulate(graph, {1, 1, 0, false}, {}, everything_on(Side::kServer, graph));
  EXPECT_EQ(timeline.up_bytes, 100);
  EXPECT_EQ(std::count_if(timeline.events.begin(), timeline.events.end(),
                          [](const Event& event) { return event.lane == Lane::kUp; }),
            1);
}

// The definition for two machines: the largest over k of "chunk k has arrived" plus "compute from chunk k on".
TEST(Timeline, ChunksAreComputedAsTheyArrive) {
  OperatorGraph graph;
  graph.operators = {input_of(12, 1200),
                     {"relu", 12, 600, {0, 1}, {0.25, 0.5}, {operand_of(0, 12, 1, 0, 1)}},
                     {"pool", 6, 60, {0, 1}, {0.125, 0.25}, {operand_of(1, 12, 2, 0, 2)}},
                     {"head", 1, 10, {1, 0}, {1, 0}, {{2, {}}}}};
  graph.outputs = {3};
  check(graph);
  const auto shares = everything_on(Side::kServer, graph);
  for (const double rate : {50.0, 100.0, 200.0, 1000.0}) {
    for (const int chunks : {2, 3, 4, 6}) {
      const int rows = 12 / chunks;
      double computed = 0;
      double end = 0;
      for (int k = chunks; k >= 1; --k) {
        // An odd number of rows leaves the pool's last row to the next chunk.
        const int pooled = k * rows / 2 - (k - 1) * rows / 2;
        computed += 0.25 + 0.5 * rows + (pooled > 0 ? 0.125 + 0.25 * pooled : 0);
        end = std::max(end, k * rows * 100 / rate + 0.5 + computed);
      }
      const Timeline timeline = simulate(graph, {rate, 10, 0.5, true}, {}, shares, chunks);
      EXPECT_NEAR(timeline.seconds, end + 1 + 1 + 0.5, 1e-9) << rate << ", " << chunks;
      EXPECT_EQ(timeline.up_bytes, 1200);
      EXPECT_GT(timeline.server_busy, graph.server_seconds());
    }
  }
}

TEST(Timeline, WhatIsNotComputedRowByRowWaitsForAllChunks) {
  const OperatorGraph graph = small_graph();
  OperatorGraph global = graph;
  global.operators[1].operands[0].needed = {};
  const LinkCost link{100, 100, 0.25, true};
  const auto shares = everything_on(Side::kServer, graph);
  const auto seconds = [&](const OperatorGraph& each, int chunks) {
    return simulate(each, link, {}, shares, chunks).seconds;
  };
  EXPECT_EQ(seconds(global, 5), seconds(global, 1));
  EXPECT_LT(seconds(graph, 5), seconds(graph, 1));
  EXPECT_EQ(simulate(graph, link, {}, shares, 10).seconds, simulate(graph, link, {}, shares, 1000).seconds);
}

// Parts in another order can be in each other's way; that is rare.
TEST(Timeline, StreamingSavesWhereLaunchesAreFree) {
  Dice dice(101);
  int faster = 0;
  int slower = 0;
  for (int i = 0; i < 300; ++i) {
    OperatorGraph graph = any_graph(dice, 12, RowNeeds::kAny);
    for (Operator& each : graph.operators) each.server.fixed = 0;
    const LinkCost link = any_wide_link(dice, true);
    const auto shares = dice.chance(0.5) ? everything_on(Side::kServer, graph) : any_shares(dice, graph);
    const Timeline whole = simulate(graph, link, {}, shares);
    const Timeline streamed = simulate(graph, link, {}, shares, static_cast<int>(dice.integer(2, 6)));
    EXPECT_NEAR(streamed.server_busy, whole.server_busy, 1e-9 * (1 + whole.server_busy));
    EXPECT_EQ(streamed.up_bytes, whole.up_bytes);
    if (shares == everything_on(Side::kServer, graph) && streamed.seconds > whole.seconds * (1 + 1e-9)) ++slower;
    if (streamed.seconds < 0.999 * whole.seconds) ++faster;
  }
  EXPECT_GT(faster, 30);
  EXPECT_LE(slower, 5);
}

// Returns the rows of operand `k` of `user` that `region` needs.
Region needed_rows(const OperatorGraph& graph, std::size_t user, std::size_t k, Region region) {
  const Operand& operand = graph.operators[user].operands[k];
  const Region all{0, graph.operators[static_cast<std::size_t>(operand.producer)].rows};
  return operand.needed ? intersection(operand.needed(region), all) : all;
}

// Each operator begins when what it needs is there, on its own side or over the link.
void expect_order(const OperatorGraph& graph, const std::vector<Share>& shares, const Timeline& timeline,
                  double latency) {
  const auto lane_of = [](bool on_server) { return on_server ? Lane::kServer : Lane::kRobot; };
  for (std::size_t i = 0; i < shares.size(); ++i) {
    for (const bool on_server : {false, true}) {
      const Region region = on_server ? shares[i].server : shares[i].robot;
      if (region.is_empty() || graph.operators[i].operands.empty()) continue;
      const double begin = least_begin(timeline, lane_of(on_server), static_cast<int>(i));
      for (std::size_t k = 0; k < graph.operators[i].operands.size(); ++k) {
        const int producer = graph.operators[i].operands[k].producer;
        const Share& made = shares[static_cast<std::size_t>(producer)];
        const Region rows = needed_rows(graph, i, k, region);
        const Region own = on_server ? made.server : made.robot;
        ASSERT_GE(begin, most_end(timeline, lane_of(on_server), producer) - 1e-9);
        if (own.holds(rows)) continue;
        const Lane way = on_server ? Lane::kUp : Lane::kDown;
        ASSERT_GE(begin, most_end(timeline, way, producer) + latency - 1e-9);
        ASSERT_GE(least_begin(timeline, way, producer), most_end(timeline, lane_of(!on_server), producer) - 1e-9);
      }
    }
  }
}

void expect_one_at_a_time(const Timeline& timeline, bool is_half_duplex) {
  std::map<int, std::vector<std::pair<double, double>>> busy;
  for (const Event& event : timeline.events) {
    const Lane lane = is_half_duplex && event.lane == Lane::kDown ? Lane::kUp : event.lane;
    ASSERT_LE(event.begin, event.end);
    busy[static_cast<int>(lane)].emplace_back(event.begin, event.end);
  }
  for (auto& [lane, spans] : busy) {
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) ASSERT_GE(spans[i].first, spans[i - 1].second - 1e-9);
  }
}

TEST(Timeline, KeepsItsPromisesForAnyPlan) {
  Dice dice(102);
  for (int i = 0; i < 600; ++i) {
    const OperatorGraph graph = any_graph(dice, 20, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, true);
    const RobotPower power{dice.real(5, 20), dice.real(1, 5), dice.real(0, 2)};
    const std::vector<Share> shares = any_shares(dice, graph);
    const Timeline timeline = simulate(graph, link, power, shares);
    ASSERT_NO_FATAL_FAILURE(expect_order(graph, shares, timeline, link.latency)) << i;
    ASSERT_NO_FATAL_FAILURE(expect_one_at_a_time(timeline, link.is_half_duplex)) << i;
    std::map<Lane, double> busy;
    double messages = 0;
    for (const Event& event : timeline.events) {
      busy[event.lane] += event.end - event.begin;
      if (event.lane == Lane::kUp || event.lane == Lane::kDown) ++messages;
    }
    const double sending = busy[Lane::kUp] + busy[Lane::kDown];
    ASSERT_NEAR(busy[Lane::kRobot], timeline.robot_busy, 1e-9);
    ASSERT_NEAR(busy[Lane::kServer], timeline.server_busy, 1e-9);
    ASSERT_NEAR(busy[Lane::kUp] * link.up_bytes_per_second, timeline.up_bytes, 1e-6 * (1 + timeline.up_bytes));
    ASSERT_NEAR(busy[Lane::kDown] * link.down_bytes_per_second, timeline.down_bytes, 1e-6 * (1 + timeline.down_bytes));
    ASSERT_NEAR(timeline.joules,
                power.compute_watts * timeline.robot_busy +
                    power.idle_watts * std::max(0.0, timeline.seconds - timeline.robot_busy) +
                    power.radio_watts * sending,
                1e-6 * (1 + timeline.joules));
    // Something is busy, or a latency passes, until the end.
    ASSERT_LE(timeline.seconds, timeline.robot_busy + timeline.server_busy + sending + messages * link.latency + 1e-9);
    // The same when run again, streamed in one chunk.
    ASSERT_EQ(simulate(graph, link, power, shares, 1).seconds, timeline.seconds);
  }
}

TEST(Timeline, StreamedMachinesDoOneThingAtATime) {
  Dice dice(103);
  for (int i = 0; i < 300; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, RowNeeds::kAny);
    const LinkCost link = any_wide_link(dice, true);
    const std::vector<Share> shares = dice.chance(0.5) ? everything_on(Side::kServer, graph) : any_shares(dice, graph);
    const Timeline timeline = simulate(graph, link, {}, shares, static_cast<int>(dice.integer(2, 20)));
    ASSERT_NO_FATAL_FAILURE(expect_one_at_a_time(timeline, link.is_half_duplex)) << i;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (shares[k].server.is_empty() || graph.operators[k].operands.empty()) continue;
      ASSERT_GE(most_end(timeline, Lane::kServer, static_cast<int>(k)), 0) << i;
    }
  }
}

TEST(Timeline, PredictionsFillThePlan) {
  const OperatorGraph graph = small_graph();
  const LinkCost link{100, 50, 0.25, false};
  OperatorPlan plan;
  plan.shares = {{{0, 10}, kNone}, {{3, 10}, {0, 4}}, {{0, 1}, kNone}};
  plan.chunks = 2;
  predict(graph, link, {}, plan);
  const Timeline timeline = simulate(graph, link, {}, plan.shares, 2);
  EXPECT_EQ(plan.seconds, timeline.seconds);
  EXPECT_EQ(plan.robot_busy, timeline.robot_busy);
  EXPECT_EQ(plan.server_busy, timeline.server_busy);
  EXPECT_EQ(plan.up_bytes, timeline.up_bytes);
  EXPECT_EQ(plan.down_bytes, timeline.down_bytes);
  EXPECT_EQ(plan.joules, timeline.joules);
  EXPECT_EQ(plan.rows_twice, timeline.rows_twice);
  EXPECT_GT(plan.rows_twice, 0);
}

TEST(Timeline, NamesWhatIsWrong) {
  const OperatorGraph graph = small_graph();
  const Region all{0, 10};
  const auto message = [&](const std::vector<Share>& shares, int chunks = 1) {
    return refusal([&] { simulate(graph, {1, 1, 0, false}, {}, shares, chunks); });
  };
  const auto expect = [&](const std::string& text, const std::vector<Share>& shares) {
    EXPECT_NE(message(shares).find(text), std::string::npos) << message(shares);
  };
  const Share head{{0, 1}, kNone};
  expect("the robot needs rows [4, 10) of operator 1 (conv) and computes [0, 4), the server computes [0, 0)",
         {{all, kNone}, {{0, 4}, kNone}, head});
  expect("the robot needs rows [0, 6) of operator 1 (conv)", {{all, kNone}, {{6, 10}, {0, 5}}, head});
  expect("the robot needs rows [0, 1) of operator 2 (head)", {{all, kNone}, {all, kNone}, {}});
  expect("operator 1 (conv) has 10 rows, and its share on the server is [5, 11)", {{all, kNone}, {all, {5, 11}}, head});
  expect("operator 1 (conv) has 10 rows, and its share on the robot is [-1, 5)", {{all, kNone}, {{-1, 5}, all}, head});
  expect("operator 0 (input) is an input", {{{0, 9}, kNone}, {all, kNone}, head});
  expect("operator 0 (input) is an input", {{all, all}, {all, kNone}, head});
  expect("2 shares for 3 operators", {{all, kNone}, {all, kNone}});
  EXPECT_NE(message({{all, kNone}, {all, kNone}, head}, 0).find("in 0 chunks"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
