// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tests/plan/simulate/cases.h"

namespace atl::plan::simulated {
namespace {

using namespace test;

constexpr Order kOrders[] = {Order::kGPipe,     Order::k1F1B,       Order::kInterleaved,
                             Order::kLoopedBfs, Order::kZeroBubble, Order::kZeroBubbleV};

int rounds_of(Order order, Dice& dice) {
  if (order == Order::kZeroBubbleV) return 2;
  return order == Order::kGPipe || order == Order::k1F1B ? 1 : static_cast<int>(dice.integer(1, 3));
}

TEST(Simulate, EqualStagesHaveClosedForms) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, 2, 7, 8, 32}) {
      for (const Order order : {Order::kGPipe, Order::k1F1B}) {
        const Simulation simulation = simulate(plan_of(order, p, equal_stages(p, 2, 3), m));
        EXPECT_DOUBLE_EQ(simulation.seconds, (m + p - 1) * 5.0) << to_string(order) << " " << p << " " << m;
        EXPECT_DOUBLE_EQ(simulation.bound, simulation.seconds);
        EXPECT_NEAR(simulation.bubble, (p - 1) / (m + p - 1.0), 1e-12);
      }
    }
  }
}

// The first micro-batch makes gradients, each further one adds to them: on the last stage between the way there and the
// way back, and on all others once more on the way back.
TEST(Simulate, AddingGradientsTakesTimeFromTheSecondMicroBatchOn) {
  for (const int p : {1, 2, 4}) {
    for (const int m : {1, 2, 8}) {
      for (const Order order : {Order::kGPipe, Order::k1F1B}) {
        std::vector<Stage> stages = equal_stages(p, 2, 3);
        for (Stage& stage : stages) stage.accumulate = {0.5, {}};
        const Simulation simulation = simulate(plan_of(order, p, stages, m));
        const double added = m > 1 ? 0.5 * (m - 1 + p - 1) : 0;
        EXPECT_DOUBLE_EQ(simulation.seconds, (m + p - 1) * 5.0 + added) << to_string(order) << " " << p << " " << m;
        EXPECT_LE(simulation.bound, simulation.seconds);
      }
    }
  }
}

// Narayanan et al., 2021: v stages per rank divide the bubble by v. Micro-batches fill whole rounds.
TEST(Simulate, InterleavingDividesTheBubble) {
  for (const int p : {2, 4}) {
    for (const int v : {1, 2, 3}) {
      const int m = 4 * p;
      const Simulation simulation = simulate(plan_of(Order::kInterleaved, p, equal_stages(p * v, 1, 2), m));
      EXPECT_DOUBLE_EQ(simulation.seconds, 3.0 * m * v + 3 * (p - 1)) << p << " " << v;
    }
  }
}

// Qi et al., 2024, with F = B = W = 1: the bubble of ZB-H1 is a third of that of 1F1B; in the V nothing is idle between
// a rank's first action and its last.
TEST(Simulate, ZeroBubbleWithEqualParts) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 4 * p}) {
      const Simulation one = simulate(plan_of(Order::kZeroBubble, p, equal_stages(p, 1, 2), m));
      EXPECT_DOUBLE_EQ(one.seconds, 3.0 * m + p - 1) << p << " " << m;
      const Simulation two = simulate(plan_of(Order::kZeroBubbleV, p, equal_stages(2 * p, 1, 2), m));
      EXPECT_DOUBLE_EQ(two.seconds, 6.0 * m + p - 1) << p << " " << m;
      for (int rank = 0; rank < p; ++rank) EXPECT_DOUBLE_EQ(two.ranks[at(rank)].idle, p - 1);
    }
  }
}

std::vector<Stage> any_stages(Dice& dice, int count) {
  std::vector<Stage> stages;
  for (int i = 0; i < count; ++i) {
    stages.push_back(stage_of(dice.real(0.5, 5), dice.real(0.5, 8), i));
    if (dice.chance(0.5)) stages.back().weight = Amounts{stages.back().backward.all * dice.real(0, 1), {}};
  }
  return stages;
}

// (m - 1) times the longest stage and once all stages is what planners minimise. It bounds 1F1B where backwards are the
// same multiple of forwards on all stages; where they are not, a step can take a little longer.
TEST(Simulate, StaysWithinTheBoundsOnUnequalPipelines) {
  Dice dice(711);
  double tightest = 0;
  int longer = 0;
  for (int i = 0; i < 6000; ++i) {
    const auto p = static_cast<int>(dice.integer(2, 6));
    const auto m = static_cast<int>(dice.integer(1, 40));
    std::vector<Stage> stages = any_stages(dice, p);
    const bool is_like = i % 2 == 0;
    const double multiple = dice.real(0.2, 4);
    double most = 0;
    double sum = 0;
    for (Stage& stage : stages) {
      if (is_like) stage = stage_of(stage.forward.all, stage.forward.all * multiple);
      most = std::max(most, stage.forward.all + stage.backward.all);
      sum += stage.forward.all + stage.backward.all;
    }
    const Simulation simulation = simulate(plan_of(Order::k1F1B, p, stages, m));
    const double ratio = simulation.seconds / ((m - 1) * most + sum);
    ASSERT_LE(ratio, is_like ? 1 + 1e-12 : 1.05) << i;
    ASSERT_GE(simulation.seconds, simulation.bound * (1 - 1e-12)) << i;
    ASSERT_GE(simulation.seconds, m * most * (1 - 1e-12)) << i;
    tightest = std::max(tightest, simulation.bound / simulation.seconds);
    longer += ratio > 1 + 1e-9;
  }
  EXPECT_NEAR(tightest, 1, 1e-9);
  EXPECT_GT(longer, 0);
}

double seconds_of(const Stage& stage, Work work) {
  const double weight = stage.weight ? stage.weight->all : stage.backward.all / 2;
  switch (work) {
    case Work::kForward: return stage.forward.all;
    case Work::kBackward: return stage.backward.all;
    case Work::kInput: return stage.backward.all - weight;
    default: return weight;
  }
}

// When every action ends, by repeating "after the one before it and what it needs" until nothing changes.
double last_end(const Plan& plan, double latency) {
  const Pipeline& pipeline = plan.pipelines.front();
  const auto stages = static_cast<int>(pipeline.stages.size());
  std::map<std::tuple<Work, int, int>, double> ends;
  std::map<int, int> places;
  for (int place = 0; place < static_cast<int>(pipeline.actions.size()); ++place) {
    for (const Action& action : pipeline.actions[at(place)]) places[action.stage] = place;
  }
  const auto end = [&](Work work, int stage, int m) {
    if (work == Work::kInput && ends.contains({Work::kBackward, stage, m})) work = Work::kBackward;
    const auto found = ends.find({work, stage, m});
    return found == ends.end() ? 0.0 : found->second;
  };
  double last = 0;
  for (bool changes = true; changes;) {
    changes = false;
    last = 0;
    for (const auto& actions : pipeline.actions) {
      double free = 0;
      for (const Action& action : actions) {
        const int from = action.work == Work::kForward ? action.stage - 1 : action.stage + 1;
        double begin = free;
        if (action.work == Work::kWeight) {
          begin = std::max(begin, end(Work::kInput, action.stage, action.micro_batch));
        } else {
          if (action.work != Work::kForward) {
            begin = std::max(begin, end(Work::kForward, action.stage, action.micro_batch));
          }
          if (from >= 0 && from < stages) {
            const Work needed = action.work == Work::kForward ? Work::kForward : Work::kInput;
            const double hop = places[from] == places[action.stage] ? 0 : latency;
            begin = std::max(begin, end(needed, from, action.micro_batch) + hop);
          }
        }
        free = begin + seconds_of(pipeline.stages[at(action.stage)], action.work);
        double& known = ends[{action.work, action.stage, action.micro_batch}];
        changes = changes || known != free;
        known = free;
        last = std::max(last, free);
      }
    }
  }
  return last;
}

TEST(Simulate, TimesFollowFromWhatWaitsForWhat) {
  Dice dice(712);
  for (int i = 0; i < 400; ++i) {
    const Order order = kOrders[dice.integer(0, 5)];
    const auto p = static_cast<int>(dice.integer(1, 5));
    const int m = p * static_cast<int>(dice.integer(1, 4));
    Plan plan = plan_of(order, p, any_stages(dice, p * rounds_of(order, dice)), m);
    const double latency = dice.chance(0.5) ? 0 : dice.real(0, 3);
    link_all(plan, 1, latency);
    const Simulation simulation = simulate(plan);
    ASSERT_NEAR(simulation.seconds, last_end(plan, latency), 1e-9 * simulation.seconds) << to_string(order) << " " << i;
    ASSERT_GE(simulation.seconds, simulation.bound * (1 - 1e-12)) << to_string(order) << " " << i;
  }
}

Plan any_plan(Dice& dice) {
  Plan plan;
  const Order order = kOrders[dice.integer(0, 5)];
  const auto p = static_cast<int>(dice.integer(1, 4));
  const int rounds = rounds_of(order, dice);
  const auto replicas = static_cast<int>(dice.integer(1, 4));
  std::vector<Stage> stages = any_stages(dice, p * rounds);
  for (Stage& stage : stages) {
    stage.boundary_bytes = dice.chance(0.2) ? 0 : dice.real(1, 30);
    stage.boundary_gradient_bytes = dice.chance(0.2) ? 0 : dice.real(1, 30);
    stage.gradient_bytes = dice.chance(0.2) ? 0 : dice.real(1, 100);
    stage.optimiser = {dice.chance(0.5) ? 0 : dice.real(0, 2), {}};
    stage.weight_bytes = dice.real(0, 5);
    stage.activation_bytes = dice.real(0, 5);
  }
  for (int i = 0; i < p * replicas; ++i) {
    const auto host = dice.integer(0, 3);
    plan.ranks.push_back(rank_of("island " + std::to_string(host / 2), "host " + std::to_string(host), i));
    plan.ranks.back().slowdown = dice.chance(0.5) ? 1 : dice.real(0.5, 3);
  }
  for (int i = 0; i < replicas; ++i) {
    plan.pipelines.push_back(pipeline_of(order, p, stages, p * static_cast<int>(dice.integer(1, 4)), i * p));
  }
  link_all(plan, dice.real(1, 30), dice.chance(0.5) ? 0 : dice.real(0, 1), static_cast<Each>(dice.integer(0, 3)));
  plan.rails[0].is_half_duplex = dice.chance(0.5);
  plan.transports[0].hops.resize(static_cast<std::size_t>(dice.integer(1, 3)));
  plan.transports[0].chunk_bytes = dice.chance(0.5) ? 0 : dice.real(1, 10);
  plan.transports[0].is_blocking = dice.chance(0.3) && order <= Order::k1F1B;
  plan.reductions = reductions_by_stage(plan.pipelines);
  plan.reduction = {dice.chance(0.5), static_cast<int>(dice.integer(1, 4)), dice.chance(0.5), dice.chance(0.5), 0};
  plan.clips = dice.chance(0.3);
  plan.steps = static_cast<int>(dice.integer(1, 3));
  return plan;
}

void expect_promises(const Plan& plan, const Simulation& simulation) {
  const double tolerance = 1e-9 * (1 + simulation.seconds);
  double path = 0;
  for (const PathPart& part : simulation.path) path += part.seconds;
  ASSERT_NEAR(path, simulation.seconds, tolerance);
  std::vector<double> free(plan.ranks.size(), 0);
  double sent = 0;
  for (const Event& event : simulation.events) {
    ASSERT_LE(event.begin, event.end);
    const Event& cause = event.cause < 0 ? event : simulation.events[at(event.cause)];
    ASSERT_LE(cause.begin, event.begin);
    if (event.what == What::kTransfer) sent += event.bytes;
    if (event.what == What::kTransfer || event.what == What::kReduction) continue;
    ASSERT_GE(event.begin, free[at(event.rank)]);
    free[at(event.rank)] = event.end;
  }
  for (const RankUse& use : simulation.ranks) {
    const double sum = use.computes + use.optimises + use.transfers + use.reduces + use.idle;
    ASSERT_NEAR(sum, simulation.seconds, tolerance);
    ASSERT_GE(std::min({use.transfers, use.reduces, use.idle}), -tolerance);
    ASSERT_LE(use.communicates, simulation.seconds + tolerance);
    sent -= use.sent_bytes;
  }
  ASSERT_NEAR(sent, 0, 1e-6);
  for (const RailUse& use : simulation.rails) ASSERT_LE(use.share, 1 + 1e-9);
  ASSERT_GE(simulation.step_seconds, simulation.bound * (1 - 1e-9));
}

TEST(Simulate, KeepsItsPromisesForAnyPlan) {
  Dice dice(713);
  int exposed = 0;
  for (int i = 0; i < 600; ++i) {
    const Plan plan = any_plan(dice);
    const Simulation simulation = simulate(plan);
    ASSERT_NO_FATAL_FAILURE(expect_promises(plan, simulation)) << i;
    for (const RankUse& use : simulation.ranks) exposed += use.transfers > 0 && use.reduces > 0;
    const Simulation again = simulate(plan);
    ASSERT_EQ(again.events.size(), simulation.events.size());
    for (std::size_t k = 0; k < again.events.size(); ++k) {
      ASSERT_EQ(again.events[k].begin, simulation.events[k].begin);
      ASSERT_EQ(again.events[k].end, simulation.events[k].end);
    }
  }
  EXPECT_GT(exposed, 100);
}

TEST(Simulate, FasterRailsAndRanksHelpOnAverage) {
  Dice dice(714);
  int worse = 0;
  for (int i = 0; i < 200; ++i) {
    Plan plan = any_plan(dice);
    const double before = simulate(plan).seconds;
    plan.rails[0].out.all *= 4;
    plan.rails[0].in.all *= 4;
    worse += simulate(plan).seconds > before * (1 + 1e-9);
  }
  EXPECT_LE(worse, 4);  // orders stay, so that an anomaly is possible, but rare
}

// Early stages keep more: min(p - k, m) with 1F1B, all with GPipe.
TEST(Simulate, ActivationsInFlight) {
  for (const int m : {2, 4, 9}) {
    std::vector<Stage> stages = equal_stages(4, 1, 2);
    for (Stage& stage : stages) {
      stage.weight_bytes = 100;
      stage.activation_bytes = 10;
    }
    const Simulation one = simulate(plan_of(Order::k1F1B, 4, stages, m));
    const Simulation all = simulate(plan_of(Order::kGPipe, 4, stages, m));
    for (int k = 0; k < 4; ++k) {
      EXPECT_EQ(one.stages[at(k)].in_flight, std::min(4 - k, m));
      EXPECT_EQ(one.ranks[at(k)].peak_bytes, 100 + 10 * std::min(4 - k, m));
      EXPECT_EQ(all.stages[at(k)].in_flight, m);
    }
  }
}

TEST(Simulate, PipelinesMayHaveUnlikeMicroBatchesAndRanks) {
  Plan plan;
  for (int i = 0; i < 4; ++i) plan.ranks.push_back(rank_of(i % 2 == 0 ? "fast" : "slow", "h", i));
  std::vector<Stage> stages = equal_stages(2, 1, 2);
  for (Stage& stage : stages) {
    stage.forward.by_name = {{"fast", 1}, {"slow", 2}};
    stage.backward.by_name = {{"fast", 2}, {"slow", 4}};
  }
  plan.pipelines = {pipeline_of(Order::k1F1B, 2, stages, 6), pipeline_of(Order::k1F1B, 2, stages, 3)};
  plan.pipelines[0].ranks = {0, 2};
  plan.pipelines[1].ranks = {1, 3};
  const Simulation simulation = simulate(plan);
  EXPECT_DOUBLE_EQ(simulation.seconds, std::max((6 + 1) * 3, (3 + 1) * 6));
  EXPECT_DOUBLE_EQ(simulation.ranks[0].computes, 18);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].computes, 18);
}

TEST(Simulate, SeveralStepsFollowEachOther) {
  Plan plan = plan_of(Order::k1F1B, 3, equal_stages(3, 1, 2), 4);
  for (Stage& stage : plan.pipelines[0].stages) stage.optimiser = {0.5, {}};
  plan.steps = 5;
  const Simulation simulation = simulate(plan);
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 6 * 3 + 0.5);
  EXPECT_DOUBLE_EQ(simulation.seconds, 5 * simulation.step_seconds);
  EXPECT_EQ(only(simulation, What::kOptimiser).size(), 15U);
  EXPECT_EQ(simulation.events.back().step, 4);
}

TEST(Simulate, NamesTheRanksThatWaitForEachOther) {
  Plan plan = plan_of(Order::k1F1B, 2, equal_stages(2, 1, 2), 2);
  const auto rows = [&](const std::vector<std::vector<std::string>>& texts) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      plan.pipelines[0].actions[i].clear();
      for (const std::string& text : texts[i]) plan.pipelines[0].actions[i].push_back(action_of(text));
    }
    return refusal([&] { simulate(plan); });
  };
  EXPECT_EQ(rows({{"0F0", "0F1", "0B0", "0B1"}, {"1F1", "1B1", "1F0", "1B0"}}), "");
  EXPECT_EQ(
      rows({{"0F0", "0B0", "0F1", "0B1"}, {"1F0", "1F1", "1B0", "1B1"}}),
      "the actions deadlock after 2 s: rank 0 (pipeline 0) waits at 0B0 for the gradient of stage 1 from rank 1; "
      "rank 1 (pipeline 0) waits at 1F1 for the output of stage 0 from rank 0. Change the order of these actions");
  EXPECT_NE(rows({{"0B0", "0F0", "0F1", "0B1"}, {"1F0", "1F1", "1B0", "1B1"}})
                .find("waits at 0B0 for 0F0, which comes later in its actions"),
            std::string::npos);
  EXPECT_NE(rows({{"0F0", "0F1", "0B0", "0B1"}, {"1F0", "1W0", "1I0", "1F1", "1B1"}}).find("waits at 1W0 for 1I0"),
            std::string::npos);
}

TEST(Simulate, ManyRanksOfSixteenIslands) {
  Plan plan;
  constexpr int kPlaces = 8;
  constexpr int kPipelines = 512;
  constexpr int kMicroBatches = 16;
  std::vector<Stage> stages = equal_stages(kPlaces, 0.01, 0.02);
  for (Stage& stage : stages) {
    stage.boundary_bytes = stage.boundary_gradient_bytes = 1e6;
    stage.gradient_bytes = 1e8;
  }
  for (int i = 0; i < kPlaces * kPipelines; ++i) {
    plan.ranks.push_back(rank_of("island " + std::to_string(i / 256), "host " + std::to_string(i / 8), i));
    plan.ranks.back().slowdown = 1 + 1e-3 * (i * 37 % 101);  // no two pipelines alike
  }
  for (int i = 0; i < kPipelines; ++i) {
    plan.pipelines.push_back(pipeline_of(Order::k1F1B, kPlaces, stages, kMicroBatches));
    for (int place = 0; place < kPlaces; ++place) plan.pipelines.back().ranks[at(place)] = place * kPipelines + i;
  }
  link_all(plan, 1e10, 1e-5, Each::kHost);
  plan.reductions = reductions_by_stage(plan.pipelines);
  plan.reduction.buckets = 2;
  const Simulation simulation = simulate(plan);
  const std::size_t actions = kPlaces * kPipelines * 2 * kMicroBatches + kPlaces * kPipelines;
  const std::size_t transfers = kPipelines * (kPlaces - 1) * 2 * kMicroBatches;
  EXPECT_EQ(simulation.events.size(), actions + transfers + kPlaces * 2);
  EXPECT_GE(simulation.seconds, simulation.bound);
  ASSERT_NO_FATAL_FAILURE(expect_promises(plan, simulation));
}

}  // namespace
}  // namespace atl::plan::simulated
