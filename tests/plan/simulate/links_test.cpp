// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/plan/simulate/cases.h"

namespace atl::plan::simulated {
namespace {

using namespace test;

// Pairs of ranks, each pair one pipeline of two stages that compute nothing: what is left is one transfer there, and
// one of no bytes back, for each micro-batch. Even ranks are on host "a", odd ones on host "b".
Plan pairs(int count, double bytes, int micro_batches = 1) {
  Plan plan;
  std::vector<Stage> stages = equal_stages(2, 0, 0);
  stages[0].boundary_bytes = bytes;
  for (int i = 0; i < count; ++i) {
    plan.ranks.push_back(rank_of("x", "a", 2 * i));
    plan.ranks.push_back(rank_of("y", "b", 2 * i + 1));
    plan.pipelines.push_back(pipeline_of(Order::kGPipe, 2, stages, micro_batches, 2 * i));
  }
  return plan;
}

double seconds(const Plan& plan) { return simulate(plan).seconds; }

TEST(SimulatedLinks, OneTransferTakesBytesOverRateAndLatency) {
  Plan plan = pairs(1, 100);
  EXPECT_EQ(seconds(plan), 0);
  link_all(plan, 50, 0.25);
  EXPECT_DOUBLE_EQ(seconds(plan), 2.25 + 0.25);  // nothing comes back, but that takes its latency
  plan.rails[0].in.all = 20;
  EXPECT_DOUBLE_EQ(seconds(plan), 5.5);
  plan.transports[0].hops[0].most_bytes_per_second = 10;
  EXPECT_DOUBLE_EQ(seconds(plan), 10.5);
  plan.transports[0].hops[0].end = End::kSender;
  plan.transports[0].hops[0].most_bytes_per_second = 40;
  EXPECT_DOUBLE_EQ(seconds(plan), 3);
}

TEST(SimulatedLinks, HostsShareWhatRanksHaveAlone) {
  for (const int count : {1, 2, 8}) {
    Plan plan = pairs(count, 100);
    link_all(plan, 50, 0, Each::kRank);
    EXPECT_DOUBLE_EQ(seconds(plan), 2);
    for (const Each each : {Each::kHost, Each::kIsland, Each::kJob}) {
      link_all(plan, 50, 0, each);
      EXPECT_DOUBLE_EQ(seconds(plan), 2 * count);
    }
  }
}

TEST(SimulatedLinks, RailsAddUp) {
  for (const int rails : {1, 2, 4}) {
    Plan plan = pairs(8, 100);
    link_all(plan, 50, 0, Each::kHost);
    plan.rails[0].count = rails;
    EXPECT_DOUBLE_EQ(seconds(plan), 16.0 / rails);
    Plan one = pairs(1, 100);
    one.rails = plan.rails;
    one.transports = plan.transports;
    one.links = plan.links;
    EXPECT_DOUBLE_EQ(seconds(one), 2.0 / rails);  // chunks are spread over all
    one.transports[0].hops[0].stripes = 1;
    EXPECT_DOUBLE_EQ(seconds(one), 2);
    one.transports[0].hops[0].stripes = 100;
    EXPECT_DOUBLE_EQ(seconds(one), 2.0 / rails);
  }
}

// One pair sends there while the other sends back.
TEST(SimulatedLinks, BothWaysAtOnceUnlessHalfDuplex) {
  Plan plan = pairs(2, 100);
  std::swap(plan.pipelines[1].ranks[0], plan.pipelines[1].ranks[1]);
  for (const Each each : {Each::kHost, Each::kIsland}) {
    link_all(plan, 50, 0, each);
    EXPECT_DOUBLE_EQ(seconds(plan), 2);
    plan.rails[0].is_half_duplex = true;
    EXPECT_DOUBLE_EQ(seconds(plan), 4);
  }
}

// When the last chunk is through, by hand: a chunk enters a hop when it has left the one before and the hop is free.
double by_chunks(const std::vector<double>& rates, double bytes, double chunk_bytes) {
  const double chunks = std::ceil(bytes / chunk_bytes);
  std::vector<double> free(rates.size(), 0);
  for (double i = 0; i < chunks; ++i) {
    double time = 0;
    for (std::size_t k = 0; k < rates.size(); ++k) time = free[k] = std::max(time, free[k]) + bytes / chunks / rates[k];
  }
  return free.back();
}

TEST(SimulatedLinks, ChainsInChunksAreAsChunkByChunk) {
  Dice dice(721);
  for (int i = 0; i < 300; ++i) {
    const double bytes = dice.real(1, 100);
    Plan plan = pairs(1, bytes);
    std::vector<double> rates;
    Transport chain{"chain", {}, 0, false};
    double latency = 0;
    double in_turn = 0;
    for (std::int64_t k = dice.integer(1, 4); k > 0; --k) {
      rates.push_back(dice.real(1, 20));
      const auto index = static_cast<int>(rates.size()) - 1;
      plan.rails.push_back(
          {"rail " + std::to_string(index), Each::kRank, 1, {rates.back(), {}}, {rates.back(), {}}, false});
      Hop hop;
      hop.rail = index;
      hop.end = static_cast<End>(dice.integer(0, 2));
      hop.latency = dice.real(0, 0.5);
      latency += hop.latency;
      in_turn += bytes / rates.back() + hop.latency;
      chain.hops.push_back(hop);
    }
    plan.transports = {chain};
    plan.links = {{}};
    ASSERT_NEAR(seconds(plan), in_turn + latency, 1e-9);
    plan.transports[0].chunk_bytes = dice.real(1, 50);
    ASSERT_NEAR(seconds(plan), by_chunks(rates, bytes, plan.transports[0].chunk_bytes) + 2 * latency, 1e-9) << i;
  }
}

TEST(SimulatedLinks, TheFirstRuleThatFitsCounts) {
  Plan plan = pairs(1, 100);
  link_all(plan, 100);
  plan.rails.push_back({"slow", Each::kRank, 1, {10, {}}, {10, {}}, false});
  Hop hop;
  hop.rail = 1;
  plan.transports.push_back({"detour", {hop}, 0, false});
  const auto rule = [](Between between, std::vector<std::string> islands, int transport) {
    LinkRule made;
    made.between = between;
    made.islands = std::move(islands);
    made.transport = transport;
    return made;
  };
  plan.links = {rule(Between::kHost, {}, 1), rule(Between::kIsland, {}, 1), rule(Between::kAny, {"x", "x"}, 1),
                rule(Between::kAny, {"y", "x"}, 0), rule(Between::kAny, {}, 1)};
  EXPECT_DOUBLE_EQ(seconds(plan), 1);
  EXPECT_EQ(simulate(plan).path.front().where, "wire");
  plan.links[3].for_transfers = false;
  EXPECT_DOUBLE_EQ(seconds(plan), 10);
  plan.links.resize(3);
  EXPECT_EQ(
      refusal([&] { simulate(plan); }),
      "no link rule says how rank 0 (island x, host a) and rank 1 (island y, host b) send to each other: add one with "
      "\"between\": \"any\"");
}

// Two stages of 1 s and 1 s, transfers of 1 s. Beside computing they only delay; else each is waited for by both.
TEST(SimulatedLinks, BlockingTransportsHoldBothEnds) {
  std::vector<Stage> stages = equal_stages(2, 1, 1);
  stages[0].boundary_bytes = 1;
  Plan plan = plan_of(Order::kGPipe, 2, stages, 3);
  link_all(plan, 1);
  EXPECT_DOUBLE_EQ(seconds(plan), 1 + 1 + 6 + 1);  // gradients are not sent
  plan.transports[0].is_blocking = true;
  // Rank 0: F send F send F send; rank 1: receive F receive F receive F.
  const Simulation simulation = simulate(plan);
  const std::vector<Event> transfers = only(simulation, What::kTransfer);
  ASSERT_EQ(transfers.size(), 3U);
  EXPECT_DOUBLE_EQ(transfers[0].begin, 1);
  EXPECT_DOUBLE_EQ(transfers[1].begin, 3);
  EXPECT_DOUBLE_EQ(transfers[2].begin, 5);
  for (const Event& transfer : transfers) {
    for (const Event& event : simulation.events) {
      const bool is_end = event.rank == transfer.rank || event.rank == transfer.peer;
      if (event.what == What::kTransfer || !is_end || event.end <= event.begin) continue;
      EXPECT_TRUE(event.end <= transfer.begin || event.begin >= transfer.end);
    }
  }
}

TEST(SimulatedLinks, SendAndReceiveOfOneTurnGoAtOnce) {
  std::vector<Stage> stages = equal_stages(2, 1, 1);
  stages[0].boundary_bytes = stages[0].boundary_gradient_bytes = 1;
  Plan plan = plan_of(Order::k1F1B, 2, stages, 4);
  link_all(plan, 1);
  plan.transports[0].is_blocking = true;
  const std::vector<Event> transfers = only(simulate(plan), What::kTransfer);
  int both = 0;
  for (const Event& a : transfers) {
    for (const Event& b : transfers) both += a.rank == 0 && b.rank == 1 && a.begin == b.begin && a.end == b.end;
  }
  EXPECT_EQ(both, 3);  // all forwards but the first
}

Plan replicas(const std::vector<std::string>& islands, double bytes) {
  Plan plan;
  std::vector<Stage> stages = equal_stages(1, 1, 2);
  stages[0].gradient_bytes = bytes;
  for (int i = 0; i < static_cast<int>(islands.size()); ++i) {
    plan.ranks.push_back(rank_of(islands[at(i)], "host " + std::to_string(i), i));
    plan.pipelines.push_back(pipeline_of(Order::kGPipe, 1, stages, 1, i));
  }
  link_all(plan, 10, 0.125);
  plan.reductions = reductions_by_stage(plan.pipelines);
  plan.reduction.overlaps = false;
  return plan;
}

TEST(SimulatedLinks, RingsHaveTheirClosedForm) {
  for (const int n : {1, 2, 3, 8}) {
    Plan plan = replicas(std::vector<std::string>(at(n), "a"), 60);
    EXPECT_NEAR(seconds(plan), 3 + (n > 1 ? 2.0 * (n - 1) / n * 6 + 2 * (n - 1) * 0.125 : 0), 1e-12);
    plan.reduction.buckets = 3;
    EXPECT_NEAR(seconds(plan), 3 + (n > 1 ? 2.0 * (n - 1) / n * 6 + 3 * 2 * (n - 1) * 0.125 : 0), 1e-12);
  }
}

TEST(SimulatedLinks, HierarchiesHaveTheirClosedForm) {
  Plan plan = replicas({"a", "b", "a", "b", "a", "b"}, 60);
  // Inside: 2/3 of 60 bytes and 2 latencies, twice. Between: three rings of 2 with a third each.
  const double inside = 4 + 2 * 0.125;
  EXPECT_NEAR(seconds(plan), 3 + 2 * inside + 2 + 2 * 0.125, 1e-12);
  plan.reduction.leads = 1;
  EXPECT_NEAR(seconds(plan), 3 + 2 * inside + 6 + 2 * 0.125, 1e-12);
  plan.reduction.leads = 0;
  plan.reduction.is_pipelined = true;
  EXPECT_NEAR(seconds(plan), 3 + 4 + 4 + 2 + 6 * 0.125, 1e-12);  // the same rails carry all phases
  plan.reduction.is_hierarchical = false;
  EXPECT_NEAR(seconds(plan), 3 + 10 + 10 * 0.125, 1e-12);
  EXPECT_DOUBLE_EQ(simulate(plan).ranks[0].reduces, 11.25);
}

// With four buckets in a backward of 2 s, each of 0.25 s, only the last one is waited for.
TEST(SimulatedLinks, BucketsOverlapTheLastBackward) {
  Plan plan = replicas({"a", "a"}, 10);
  link_all(plan, 10);
  plan.reduction.buckets = 4;
  EXPECT_DOUBLE_EQ(seconds(plan), 3 + 1);
  plan.reduction.overlaps = true;
  EXPECT_DOUBLE_EQ(seconds(plan), 3 + 0.25);
  plan.reductions[0].bytes = 40;  // 1 s each: the first begins after 1.5 s
  EXPECT_DOUBLE_EQ(seconds(plan), 1.5 + 4);
}

TEST(SimulatedLinks, TiedWeightsAreReducedInsideAPipeline) {
  Plan plan = plan_of(Order::kGPipe, 2, equal_stages(2, 1, 2), 1);
  link_all(plan, 10);
  plan.reductions = {{"embedding", 20, {{0, 0}, {0, 1}}}};
  EXPECT_DOUBLE_EQ(seconds(plan), 6 + 2);
  plan.reductions[0].members.push_back({0, 1});
  EXPECT_NE(refusal([&] { simulate(plan); }).find("names stage 1 of pipeline 0 twice"), std::string::npos);
}

TEST(SimulatedLinks, ClippingWaitsForAll) {
  Plan plan = replicas({"a", "a", "b", "b"}, 0);
  for (Pipeline& pipeline : plan.pipelines) pipeline.stages[0].optimiser = {1, {}};
  plan.ranks[3].slowdown = 2;
  EXPECT_DOUBLE_EQ(simulate(plan).ranks[0].idle, 8 - 4);
  for (const Event& event : only(simulate(plan), What::kOptimiser))
    EXPECT_DOUBLE_EQ(event.begin, event.rank == 3 ? 6 : 3);
  plan.clips = true;
  for (const Event& event : only(simulate(plan), What::kOptimiser)) EXPECT_DOUBLE_EQ(event.begin, 6);
}

}  // namespace
}  // namespace atl::plan::simulated
