// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/policies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::rank_of;
using test::refusal;
using Batches = std::vector<std::int64_t>;

// Ranks of these speeds; each holds the same memory and is equally far from the others.
Request with_speeds(const std::vector<double>& speeds, std::int64_t batch) {
  Request request;
  request.batch = batch;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    Rank rank = rank_of("r" + std::to_string(i), Cost::affine(0, 1 / speeds[i]));
    rank.metrics.ops = speeds[i] * 1e12;
    rank.metrics.memory_used = 4e9;
    rank.metrics.latency = 0.001;
    rank.metrics.latencies.assign(speeds.size(), 0.001);
    rank.metrics.latencies[i] = 0;
    request.ranks.push_back(rank);
  }
  return request;
}

BatchPlan planned(Request request, const std::string& policy, const std::string& form) {
  request.policy = policy;
  request.form = form;
  return plan_batches(request);
}

// The paper's own setting, four identical devices: the equation processes 2/3 of the global batch on each, Algorithm 1
// a third.
TEST(BalanceNet, LiteralFormsOfFourEqualRanks) {
  const Request request = with_speeds({1, 1, 1, 1}, 64);
  const BatchPlan equation = planned(request, "balancenet-eq5", "literal");
  EXPECT_EQ(equation.batches, (Batches{42, 42, 42, 42}));
  EXPECT_EQ(equation.total, 168);
  EXPECT_EQ(equation.notes.back(), "literal: the batches add up to 168, but the global batch is 64");
  const BatchPlan algorithm = planned(request, "balancenet-alg1", "literal");
  EXPECT_EQ(algorithm.batches, (Batches{21, 21, 21, 21}));
  EXPECT_EQ(algorithm.total, 84);
  // With the baseline as the batch of one rank, as the paper has it, each does 2/3 or 1/3 of what an equal split does.
  EXPECT_NEAR(static_cast<double>(equation.batches[0]) / 64, 2.0 / 3, 0.02);
  EXPECT_NEAR(static_cast<double>(algorithm.batches[0]) / 64, 1.0 / 3, 0.02);
  EXPECT_NEAR(equation.distance, 1, 1e-12) << "by the time per sample";
  EXPECT_EQ(planned(request, "balancenet-eq5", "normalised").batches, (Batches{16, 16, 16, 16}));
  EXPECT_EQ(planned(request, "balancenet-alg1", "normalised").batches, (Batches{16, 16, 16, 16}));
}

TEST(BalanceNet, ComputeFades) {
  const Request request = with_speeds({4, 1, 1, 1}, 7000);
  const BalanceNet result = balancenet(request.ranks, request.batch, BalanceNetRule::kEquation5);
  EXPECT_NEAR(result.ranks[0].query / result.ranks[1].query, 1.23, 0.005);
  const BatchPlan plan = planned(request, "balancenet-eq5", "normalised");
  EXPECT_EQ(plan.total, 7000);
  EXPECT_NEAR(1 / plan.distance, 0.60, 0.01) << "of the throughput of the best split";
  EXPECT_NEAR(1 / planned(request, "equal", "").distance, 0.57, 0.01);
}

TEST(BalanceNet, SumsLieWhereTheFormulaPutsThem) {
  Dice dice(31);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> speeds;
    for (std::int64_t k = dice.integer(2, 6); k > 0; --k) speeds.push_back(dice.real(0.5, 4));
    Request request = with_speeds(speeds, 600);
    for (Rank& rank : request.ranks) {
      rank.metrics.memory_used = dice.real(1e9, 80e9);
      for (double& latency : rank.metrics.latencies) latency *= dice.real(0.1, 5);
    }
    const auto count = static_cast<double>(speeds.size());
    const BalanceNet result = balancenet(request.ranks, 600, BalanceNetRule::kEquation5);
    double keys = 0;
    double memory = 0;
    double queries = 0;
    for (const BalanceNetRank& rank : result.ranks) {
      keys += rank.key;
      memory += rank.memory;
      queries += rank.query;
    }
    EXPECT_NEAR(keys, 1, 1e-12);
    EXPECT_NEAR(memory, count - 1, 1e-12);
    EXPECT_GE(queries, 2 * count / 3 - 1e-9);
    EXPECT_LE(queries, count * count / 3 + 1e-9);
  }
}

TEST(BalanceNet, ZeroDivisionsHaveAMeaning) {
  Request request = with_speeds({2, 1}, 60);
  for (Rank& rank : request.ranks) {
    rank.metrics.memory_used = 0;
    rank.metrics.latency = 0;
    rank.metrics.latencies = {0, 0};
  }
  const BalanceNet pairwise = balancenet(request.ranks, 60, BalanceNetRule::kEquation5);
  EXPECT_EQ(pairwise.ranks[0].network, (std::vector<double>{1, 1}));
  EXPECT_DOUBLE_EQ(pairwise.ranks[0].memory, 0.5);
  EXPECT_EQ(balancenet(request.ranks, 60, BalanceNetRule::kAlgorithm1).ranks[1].network, std::vector<double>{1});

  const Request alone = with_speeds({1}, 60);
  EXPECT_EQ(balancenet(alone.ranks, 60, BalanceNetRule::kEquation5).ranks[0].literal, 40);
  EXPECT_EQ(balancenet(alone.ranks, 60, BalanceNetRule::kAlgorithm1).ranks[0].literal, 20);
  // One rank with all memory in use and the largest latency asks for its share of compute only: none.
  Request nobody = with_speeds({1}, 60);
  nobody.ranks[0].metrics.ops = 0;
  EXPECT_EQ(planned(nobody, "balancenet-alg1", "normalised").batches, Batches{60});
}

TEST(BalanceNet, SaysWhatStoodInForMetrics) {
  Request request = with_speeds({2, 1}, 60);
  for (Rank& rank : request.ranks) rank.metrics = {};
  const BalanceNet result = balancenet(request.ranks, 60, BalanceNetRule::kEquation5);
  EXPECT_EQ(result.notes.size(), 3U);
  EXPECT_NEAR(result.ranks[0].key, 2.0 / 3, 1e-12);
  EXPECT_EQ(result.ranks[0].network, (std::vector<double>{1, 0}));
}

TEST(BalanceNet, RefusesHalfStatedMetrics) {
  Request request = with_speeds({2, 1}, 60);
  request.ranks[1].metrics.ops.reset();
  EXPECT_NE(refusal([&] { planned(request, "balancenet-eq5", "literal"); }).find("rank 1 (r1) states no ops"),
            std::string::npos);
  request = with_speeds({2, 1}, 60);
  request.ranks[0].metrics.latencies.pop_back();
  EXPECT_NE(refusal([&] { planned(request, "balancenet-eq5", "literal"); }).find("states 1 latencies"),
            std::string::npos);
  EXPECT_NE(refusal([&] { planned(with_speeds({1}, 8), "balancenet-eq5", "exact"); }).find("normalised, literal"),
            std::string::npos);
}

TEST(BalanceNet, LiteralFormsNameCapsThatTheyPass) {
  Request request = with_speeds({1, 1}, 64);
  request.ranks[1].bounds.most = 40;
  const BatchPlan plan = planned(request, "balancenet-eq5", "literal");
  EXPECT_EQ(plan.batches, (Batches{42, 42}));
  EXPECT_EQ(plan.notes.front(), "rank 1 (r1) gets 42 samples, more than its cap of 40");
}

}  // namespace
}  // namespace atl::plan
