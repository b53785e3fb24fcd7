// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::any_instance;
using test::Dice;
using test::each_split;
using test::Instance;
using test::rank_of;
using test::refusal;

void give_watts(Dice& dice, std::vector<Rank>& ranks) {
  const bool no_idle = dice.chance(0.2);
  for (Rank& rank : ranks) {
    const double idle = no_idle ? 0 : dice.real(0, 50);
    rank.power = Power{idle + dice.real(0, 300), idle};
  }
}

TEST(Energy, EqualsBruteForce) {
  Dice dice(41);
  int planned = 0;
  for (int i = 0; i < 1500; ++i) {
    Instance instance = any_instance(dice, 18, dice.chance(0.3));
    give_watts(dice, instance.ranks);
    Split shortest;
    if (!refusal([&] { shortest = threshold(instance.ranks, instance.batch); }).empty()) continue;
    ++planned;
    const double limit = shortest.seconds * (1 + (dice.chance(0.2) ? 0 : dice.real(0, 0.6)));
    double best = HUGE_VAL;
    each_split(instance, [&](const std::vector<std::int64_t>& batches) {
      if (step_seconds(instance.ranks, batches) <= limit) best = std::min(best, step_joules(instance.ranks, batches));
    });
    const EnergySplit split = least_energy(instance.ranks, instance.batch, limit);
    ASSERT_TRUE(split.exact);
    ASSERT_LE(step_seconds(instance.ranks, split.batches), limit) << i;
    ASSERT_NEAR(step_joules(instance.ranks, split.batches), best, 1e-9 * best) << i;
  }
  EXPECT_GT(planned, 700);
}

TEST(Energy, LeavesWorkToTheThriftyDevice) {
  std::vector<Rank> ranks{rank_of("thirsty", Cost::affine(0, 1)), rank_of("thrifty", Cost::affine(0, 1))};
  ranks[0].power = Power{300, 10};
  ranks[1].power = Power{100, 10};
  EXPECT_EQ(least_energy(ranks, 40, 20).batches, (std::vector<std::int64_t>{20, 20}));
  EXPECT_EQ(least_energy(ranks, 40, 22).batches, (std::vector<std::int64_t>{18, 22}));
}

TEST(Energy, LargeProblemsKeepTheirLimitsAndSaySo) {
  Dice dice(42);
  std::vector<Rank> ranks;
  for (int i = 0; i < 64; ++i) ranks.push_back(rank_of("", Cost::affine(dice.real(0, 2), dice.real(0.5, 2))));
  give_watts(dice, ranks);
  const Split shortest = threshold(ranks, 20000);
  const EnergySplit split = least_energy(ranks, 20000, shortest.seconds * 1.1);
  EXPECT_FALSE(split.exact);
  EXPECT_EQ(std::accumulate(split.batches.begin(), split.batches.end(), std::int64_t{0}), 20000);
  EXPECT_LE(step_seconds(ranks, split.batches), shortest.seconds * 1.1);
  EXPECT_LT(step_joules(ranks, split.batches), step_joules(ranks, shortest.batches));
}

// Two hundred times the batch at a two hundredth of the time per sample: what the coarse problem can do, the fine one can
// do as well, and it is too large for the exact search.
TEST(Energy, TheApproximationIsNearTheOptimum) {
  Dice dice(43);
  for (int i = 0; i < 24; ++i) {
    std::vector<Rank> coarse;
    std::vector<Rank> fine;
    for (int k = 0; k < 3; ++k) {
      const double fixed = dice.real(0, 2);
      const double slope = dice.real(0.5, 2);
      const std::int64_t size = dice.integer(5, 80);
      const auto knee = static_cast<double>(size);
      const auto kind = i < 16 ? i / 8 : dice.integer(0, 2);
      coarse.push_back(rank_of("", kind == 0   ? Cost::affine(fixed, slope)
                                   : kind == 1 ? Cost::saturating(fixed, slope, knee)
                                               : Cost::staircase(size, fixed, slope)));
      fine.push_back(rank_of("", kind == 0   ? Cost::affine(fixed, slope / 200)
                                 : kind == 1 ? Cost::saturating(fixed, slope / 200, knee * 200)
                                             : Cost::staircase(size * 200, fixed, slope / 200)));
    }
    give_watts(dice, coarse);
    for (std::size_t k = 0; k < fine.size(); ++k) fine[k].power = coarse[k].power;
    const double limit = threshold(coarse, 200).seconds * (i < 16 ? 3 : 1.1);
    const EnergySplit exact = least_energy(coarse, 200, limit);
    const EnergySplit near = least_energy(fine, 40'000, limit);
    ASSERT_TRUE(exact.exact);
    ASSERT_FALSE(near.exact);
    ASSERT_LE(step_seconds(fine, near.batches), limit);
    ASSERT_LE(step_joules(fine, near.batches), (i < 16 ? 1.002 : 1.06) * step_joules(coarse, exact.batches)) << i;
  }
}

TEST(Energy, NeedsWatts) {
  std::vector<Rank> ranks{rank_of("a", Cost::affine(0, 1)), rank_of("b", Cost::affine(0, 1))};
  ranks[0].power = Power{300, 10};
  EXPECT_NE(refusal([&] { least_energy(ranks, 4, 10); }).find("busy_watts and idle_watts of rank 1 (b)"),
            std::string::npos);
  ranks[1].power = Power{5, 10};
  EXPECT_NE(refusal([&] { least_energy(ranks, 4, 10); }).find("draws less when busy"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
