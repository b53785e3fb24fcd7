// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/apportion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::each_split;
using test::Instance;
using test::refusal;
using Batches = std::vector<std::int64_t>;

std::vector<double> any_weights(Dice& dice, std::size_t count) {
  std::vector<double> weights;
  for (std::size_t i = 0; i < count; ++i) weights.push_back(dice.chance(0.1) ? 0 : dice.real(0.01, 4));
  weights.back() += 0.5;
  return weights;
}

TEST(Apportion, GivesTheLargestRemainders) {
  const std::vector<Bounds> free(3, Bounds{0, kUnbounded, 1});
  EXPECT_EQ(apportion(std::vector<double>{1, 1, 1}, 8, free), (Batches{3, 3, 2}));
  EXPECT_EQ(apportion(std::vector<double>{4.6, 3.3, 2.1}, 10, free), (Batches{5, 3, 2}));
  EXPECT_EQ(apportion(std::vector<double>{4, 1, 1}, 60, free), (Batches{40, 10, 10}));
}

TEST(Apportion, BoundsBindAndTheOthersShareTheRest) {
  const std::vector<Bounds> bounds{{0, 10, 1}, {5, kUnbounded, 1}, {0, kUnbounded, 1}};
  EXPECT_EQ(apportion(std::vector<double>{6, 0, 3}, 60, bounds), (Batches{10, 5, 45}));
  // The cap frees samples, so the second rank's least does not bind in the end.
  const std::vector<Bounds> both{{0, 20, 1}, {4, kUnbounded, 1}, {0, kUnbounded, 1}};
  EXPECT_EQ(apportion(std::vector<double>{10, 1, 1}, 30, both), (Batches{20, 5, 5}));
  // Ranks without a weight take what the others cannot hold.
  const std::vector<Bounds> capped{{0, 10, 1}, {0, 20, 1}, {0, 20, 1}};
  EXPECT_EQ(apportion(std::vector<double>{1, 0, 0}, 30, capped), (Batches{10, 10, 10}));
}

// Proves P-3.
TEST(Apportion, KeepsSumBoundsAndQuotas) {
  Dice dice(21);
  int planned = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto count = static_cast<std::size_t>(dice.integer(1, 7));
    const std::int64_t quantum = dice.chance(0.5) ? 1 : dice.integer(2, 8);
    const std::int64_t total = quantum * dice.integer(1, 60);
    std::vector<Bounds> bounds;
    bool free = true;
    for (std::size_t k = 0; k < count; ++k) {
      bounds.push_back({dice.chance(0.7) ? 0 : dice.integer(1, 9), dice.chance(0.7) ? kUnbounded : dice.integer(9, 99),
                        dice.chance(0.1) ? dice.integer(1, 4) : quantum});
      free = free && bounds.back().least == 0 && bounds.back().most == kUnbounded && bounds.back().quantum == quantum;
    }
    const std::vector<double> weights = any_weights(dice, count);
    Batches batches;
    if (!refusal([&] { batches = apportion(weights, total, bounds); }).empty()) continue;
    ++planned;
    ASSERT_EQ(std::accumulate(batches.begin(), batches.end(), std::int64_t{0}), total);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t k = 0; k < count; ++k) {
      ASSERT_GE(batches[k], bounds[k].least);
      ASSERT_LE(batches[k], bounds[k].most);
      ASSERT_EQ(batches[k] % bounds[k].quantum, 0);
      if (!free) continue;
      const double share = static_cast<double>(total) * weights[k] / sum;
      ASSERT_LT(std::abs(static_cast<double>(batches[k]) - share), static_cast<double>(quantum) * (1 + 1e-9));
    }
  }
  EXPECT_GT(planned, 2500);
}

TEST(Apportion, DeviatesLeastWhereNoBoundBinds) {
  Dice dice(22);
  for (int i = 0; i < 500; ++i) {
    Instance instance;
    instance.batch = dice.integer(1, 20);
    for (std::int64_t k = dice.integer(2, 4); k > 0; --k) {
      instance.ranks.push_back(test::rank_of("", Cost(), 0));
    }
    const std::vector<double> weights = any_weights(dice, instance.ranks.size());
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto deviation = [&](const Batches& batches) {
      double total = 0;
      for (std::size_t k = 0; k < weights.size(); ++k) {
        total += std::abs(static_cast<double>(batches[k]) - static_cast<double>(instance.batch) * weights[k] / sum);
      }
      return total;
    };
    double best = HUGE_VAL;
    each_split(instance, [&](const Batches& batches) { best = std::min(best, deviation(batches)); });
    ASSERT_LE(deviation(apportion(weights, instance.batch, bounds_of(instance.ranks))), best + 1e-9);
  }
}

TEST(Apportion, RefusesWeightsThatGiveNoShares) {
  const std::vector<Bounds> two(2);
  const auto refused = [&](const std::vector<double>& weights) { return refusal([&] { apportion(weights, 8, two); }); };
  EXPECT_NE(refused({0, 0}).find("all weights are 0"), std::string::npos);
  EXPECT_NE(refused({1, -1}).find("rank 1 is -1"), std::string::npos);
  EXPECT_NE(refused({1, std::nan("")}).find("rank 1 is nan"), std::string::npos);
  EXPECT_NE(refused({1}).find("2 ranks have 1 weight"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
