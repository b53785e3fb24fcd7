// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/policies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::rank_of;
using test::refusal;
using Batches = std::vector<std::int64_t>;

Request request_of(const std::vector<Cost>& costs, std::int64_t batch, const std::string& policy = "minmax") {
  Request request;
  request.batch = batch;
  request.policy = policy;
  for (std::size_t i = 0; i < costs.size(); ++i) request.ranks.push_back(rank_of("r" + std::to_string(i), costs[i]));
  return request;
}

TEST(Policies, SimpleOnesGiveTheirShares) {
  Request request = request_of({Cost::affine(0, 1), Cost::affine(0, 3)}, 40, "equal");
  EXPECT_EQ(plan_batches(request).batches, (Batches{20, 20}));
  request.policy = "minmax";
  EXPECT_EQ(plan_batches(request).batches, (Batches{30, 10}));
  request.policy = "kaitian";
  EXPECT_EQ(plan_batches(request).batches, (Batches{30, 10}));
  request.policy = "fixed";
  request.shares = {1, 4};
  EXPECT_EQ(plan_batches(request).batches, (Batches{8, 32}));
  request.policy = "random";
  const Batches first = plan_batches(request).batches;
  EXPECT_EQ(plan_batches(request).batches, first);
  EXPECT_EQ(first[0] + first[1], 40);
  request.seed = 1;
  EXPECT_NE(plan_batches(request).batches, first);
}

TEST(Policies, PlansSayWhatTheyCost) {
  Request request = request_of({Cost::affine(0, 1), Cost::affine(0, 3)}, 40, "equal");
  request.ranks[0].power = Power{100, 20};
  request.ranks[1].power = Power{50, 10};
  const BatchPlan plan = plan_batches(request);
  EXPECT_EQ(plan.seconds, (std::vector<double>{20, 60}));
  EXPECT_EQ(plan.step, 60);
  EXPECT_NEAR(plan.idle[0], 2.0 / 3, 1e-12);
  EXPECT_EQ(plan.idle[1], 0);
  EXPECT_NEAR(plan.mean_idle, 1.0 / 3, 1e-12);
  EXPECT_EQ(plan.bound, 30);
  EXPECT_EQ(plan.distance, 2);
  EXPECT_NEAR(*plan.joules_per_sample, (100 * 20 + 20 * 40 + 50 * 60) / 40.0, 1e-12);
  EXPECT_FALSE(plan.exact);
  request.policy = "minmax";
  EXPECT_TRUE(plan_batches(request).exact);
  EXPECT_EQ(plan_batches(request).distance, 1);
}

// Proves P-2 and P-3.
TEST(Policies, NoneBeatsTheBoundAndAllKeepTheirLimits) {
  Dice dice(51);
  int planned = 0;
  for (int i = 0; i < 300; ++i) {
    Request request;
    request.seed = static_cast<std::uint64_t>(i);
    request.batch = dice.integer(8, 120);
    for (std::int64_t k = dice.integer(2, 5); k > 0; --k) {
      Rank rank =
          rank_of("", test::any_cost(dice), dice.integer(0, 2), dice.chance(0.5) ? kUnbounded : dice.integer(9, 60));
      rank.power = Power{dice.real(50, 300), dice.real(0, 50)};
      request.ranks.push_back(rank);
      request.shares.push_back(dice.real(0.1, 1));
    }
    double kaitian = HUGE_VAL;
    for (const std::string_view policy : policies()) {
      request.policy = policy;
      BatchPlan plan;
      if (!refusal([&] { plan = plan_batches(request); }).empty()) continue;
      ++planned;
      ASSERT_EQ(plan.total, request.batch) << policy;
      ASSERT_GE(plan.distance, 1) << policy;
      if (policy == "kaitian") kaitian = plan.step;
      if (policy == "kaitian-iterative") {
        ASSERT_LE(plan.step, kaitian) << "not the best of all rounds";
      }
      if (policy == "energy") {
        ASSERT_LE(plan.distance, 1.1 * (1 + 1e-12));
      }
      for (std::size_t k = 0; k < plan.batches.size(); ++k) {
        ASSERT_GE(plan.batches[k], request.ranks[k].bounds.least) << policy;
        ASSERT_LE(plan.batches[k], request.ranks[k].bounds.most) << policy;
      }
    }
  }
  EXPECT_GT(planned, 1500);
}

struct Ratios {
  double equal = 0;
  double once = 0;
  double again = 0;
};

// Devices whose speeds differ by up to four times, with a fixed cost of `overhead` of the fastest device's equal share.
Ratios mean_ratios(int ranks, double overhead, std::int64_t probe) {
  Dice dice(52);
  Ratios mean;
  constexpr int kClusters = 200;
  for (int i = 0; i < kClusters; ++i) {
    std::vector<double> slopes;
    for (int k = 0; k < ranks; ++k) slopes.push_back(1 / dice.real(1, 4));
    const double fastest = *std::min_element(slopes.begin(), slopes.end());
    const double fixed = overhead / (1 - overhead) * fastest * 256 / ranks;
    std::vector<Cost> costs;
    for (const double slope : slopes) costs.push_back(Cost::affine(fixed, slope));
    Request request = request_of(costs, 256, "equal");
    request.probe = probe;
    mean.equal += plan_batches(request).distance / kClusters;
    request.policy = "kaitian";
    mean.once += plan_batches(request).distance / kClusters;
    request.policy = "kaitian-iterative";
    mean.again += plan_batches(request).distance / kClusters;
  }
  return mean;
}

// One score per device assumes that time is proportional to the batch: with a fixed cost per step it depends on the
// probe, and asking again at the batches that it gave repairs it.
TEST(Policies, KaitianDependsOnItsProbeUntilItIsIterated) {
  const Ratios proportional = mean_ratios(2, 0, 8);
  EXPECT_LT(proportional.once, 1.01);
  const Ratios small_probe = mean_ratios(2, 0.3, 8);
  const Ratios fair_probe = mean_ratios(2, 0.3, 128);
  EXPECT_GT(small_probe.once, 1.15);
  EXPECT_LT(fair_probe.once, small_probe.once);
  EXPECT_GT(fair_probe.once, 1.01);
  const Ratios four = mean_ratios(4, 0.3, 8);
  EXPECT_GT(four.once, 1.15);
  for (const Ratios& ratios : {small_probe, fair_probe, four}) {
    EXPECT_LT(ratios.again, 1.01);
    EXPECT_GT(ratios.equal, 1.1);
  }
}

TEST(Policies, KaitianSurvivesDevicesThatTakeNoTime) {
  Request request = request_of({Cost(), Cost()}, 10, "kaitian");
  EXPECT_EQ(plan_batches(request).batches, (Batches{5, 5}));
  request.ranks[1].cost = Cost::affine(0, 1);
  request.policy = "kaitian-iterative";
  EXPECT_EQ(plan_batches(request).total, 10);
}

TEST(Policies, ErrorsNameWhatIsMissing) {
  Request request = request_of({Cost::affine(0, 1), Cost::affine(0, 3)}, 40);
  const auto refused = [&](const std::string& policy) {
    request.policy = policy;
    return refusal([&] { plan_batches(request); });
  };
  EXPECT_NE(refused("best").find("give one of equal, random, fixed, kaitian"), std::string::npos);
  EXPECT_NE(refused("fixed").find("needs shares"), std::string::npos);
  EXPECT_NE(refused("energy").find("needs busy_watts and idle_watts of rank 0 (r0)"), std::string::npos);
  request.probe = -1;
  EXPECT_NE(refused("kaitian").find("probe batch is -1"), std::string::npos);
  request.slowdown = -0.5;
  EXPECT_NE(refused("energy").find("slowdown is -0.5"), std::string::npos);
  EXPECT_NE(refusal([] { plan_batches(Request{}); }).find("no ranks"), std::string::npos);
}

TEST(Policies, PlansOfEqualBatchesHaveEqualIds) {
  Request request = request_of({Cost::affine(0, 1), Cost::affine(0, 3)}, 40);
  const BatchPlan plan = plan_batches(request);
  request.ranks[0].cost = Cost::affine(0, 1 + 1e-13);
  EXPECT_EQ(plan_batches(request).id(), plan.id());
  EXPECT_EQ(plan.id().size(), 16U);
  request.policy = "equal";
  EXPECT_NE(plan_batches(request).id(), plan.id());
}

TEST(Policies, ReadTheirRequestsFromJson) {
  const Request request = Request::from_json(R"({"batch": 60, "policy": "energy", "slowdown": 0.2, "ranks": [
      {"name": "fast", "cost": {"shape": "affine", "per_sample": 1}, "busy_watts": 300, "idle_watts": 30},
      {"cost": {"shape": "affine", "per_sample": 3}, "least": 0, "most": 10, "quantum": 2, "busy_watts": 9,
       "idle_watts": 1}]})");
  EXPECT_EQ(request.slowdown, 0.2);
  EXPECT_EQ(request.ranks[1].bounds.most, 10);
  const auto plan = nlohmann::json::parse(plan_batches(request).to_json());
  EXPECT_EQ(plan["batches"], (Batches{50, 10}));
  EXPECT_EQ(plan["policy"], "energy");
  EXPECT_EQ(plan["id"], plan_batches(request).id());
  const Request all = Request::from_json(R"({"ranks": [], "batch": 7, "policy": "random", "form": "literal", "seed": 3,
      "epoch": 4, "shares": [1, 2], "probe": 5, "rounds": 6, "slowdown": 0.25})");
  EXPECT_EQ(std::tie(all.batch, all.policy, all.form, all.seed, all.epoch, all.probe, all.rounds, all.slowdown),
            std::make_tuple(7, "random", "literal", 3U, 4, 5, 6, 0.25));
  EXPECT_EQ(all.shares, (std::vector<double>{1, 2}));
  const auto refused = [](const char* text) { return refusal([&] { Request::from_json(text); }); };
  EXPECT_NE(refused(R"({"batch": 60, "ranks": [], "polcy": 1})").find("unknown key \"polcy\""), std::string::npos);
  EXPECT_NE(refused(R"({"batch": 1.5, "ranks": []})").find("not an integer"), std::string::npos);
  EXPECT_NE(refused(R"({"batch": 4, "ranks": [{"name": "a", "cost": {"shape": "affine"}}]})")
                .find("rank 0 (a)'s cost lacks \"per_sample\""),
            std::string::npos);
  EXPECT_NE(refused(R"({"batch": 4, "ranks": [{"cost": {"shape": "affine", "per_sample": 1}, "busy_watts": 1}]})")
                .find("both busy_watts and idle_watts"),
            std::string::npos);
}

TEST(Explain, ShowsEveryPolicyOnTheSameCosts) {
  Request request = request_of({Cost::affine(0, 1), Cost::affine(0, 3)}, 40);
  const Explanation explanation = explain(request);
  EXPECT_EQ(explanation.plans.size(), 9U);  // two of them literal
  ASSERT_EQ(explanation.left_out.size(), 2U);
  EXPECT_EQ(explanation.left_out[0].first, "fixed");
  EXPECT_EQ(explanation.left_out[1].first, "energy");
  for (const BatchPlan& plan : explanation.plans) EXPECT_GE(plan.distance, 1 - 1e-12) << plan.policy;
  const auto value = nlohmann::json::parse(explanation.to_json());
  EXPECT_EQ(value["plans"].size(), 9U);
  EXPECT_EQ(value["balancenet-eq5"][0]["name"], "r0");
  EXPECT_NEAR(value["balancenet-eq5"][0]["K"], 0.75, 1e-12);
  EXPECT_NEAR(value["balancenet-alg1"][1]["MW"], 0.5, 1e-12);
  request.batch = 1;
  EXPECT_NE(refusal([&] { explain(request); }).find("at least 2 samples"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
