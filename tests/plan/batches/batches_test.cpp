// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <tuple>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::any_instance;
using test::Dice;
using test::each_split;
using test::Instance;
using test::rank_of;
using test::refusal;
using Batches = std::vector<std::int64_t>;

// Gives one quantum at a time to the rank that finishes it first; of equal times, to the emptiest and then the lowest.
Split greedy(const std::vector<Rank>& ranks, std::int64_t batch) {
  const std::vector<Bounds> bounds = settled(bounds_of(ranks), batch, names_of(ranks));
  if (!same_quantum(bounds)) return threshold(ranks, batch);
  Batches batches;
  for (const Bounds& bound : bounds) batches.push_back(bound.least);
  std::int64_t left = batch - std::accumulate(batches.begin(), batches.end(), std::int64_t{0});
  for (; left > 0; left -= bounds.front().quantum) {
    std::tuple<double, std::int64_t, std::size_t> first{HUGE_VAL, 0, 0};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::int64_t next = batches[i] + bounds[i].quantum;
      if (next <= bounds[i].most) first = std::min(first, {ranks[i].cost.seconds(next), next, i});
    }
    batches[std::get<2>(first)] = std::get<1>(first);
  }
  return {batches, step_seconds(ranks, batches)};
}

void expect_exact(const Instance& instance, int& feasible) {
  double best = HUGE_VAL;
  each_split(instance, [&](const Batches& batches) { best = std::min(best, step_seconds(instance.ranks, batches)); });
  Split split;
  Split other;
  const std::string refused = refusal([&] { split = greedy(instance.ranks, instance.batch); });
  const std::string other_refused = refusal([&] { other = threshold(instance.ranks, instance.batch); });
  ASSERT_EQ(refused, other_refused);
  ASSERT_EQ(refused.empty(), best < HUGE_VAL) << refused;
  if (!refused.empty()) return;
  ++feasible;
  ASSERT_EQ(split.batches, other.batches);
  ASSERT_EQ(split.seconds, best);
  ASSERT_EQ(step_seconds(instance.ranks, split.batches), best);
  ASSERT_EQ(std::accumulate(split.batches.begin(), split.batches.end(), std::int64_t{0}), instance.batch);
  for (std::size_t i = 0; i < split.batches.size(); ++i) {
    const Bounds& bounds = instance.ranks[i].bounds;
    ASSERT_GE(split.batches[i], bounds.least);
    ASSERT_LE(split.batches[i], bounds.most);
    ASSERT_EQ(split.batches[i] % bounds.quantum, 0);
  }
}

// Proves P-4.
TEST(Batches, EqualBruteForce) {
  Dice dice(11);
  int feasible = 0;
  for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    expect_exact(any_instance(dice, 22, false), feasible);
  }
  EXPECT_GT(feasible, 2000);
  EXPECT_LT(feasible, 3990) << "no instance was infeasible";
}

TEST(Batches, EqualBruteForceWithUnequalQuanta) {
  Dice dice(12);
  int feasible = 0;
  for (int i = 0; i < 2000 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    expect_exact(any_instance(dice, 22, true), feasible);
  }
  EXPECT_GT(feasible, 600);
  EXPECT_LT(feasible, 1990) << "no instance was infeasible";
}

TEST(Batches, ThresholdEqualsGreedyOnManyRanks) {
  Dice dice(13);
  for (int i = 0; i < 60; ++i) {
    std::vector<Rank> ranks;
    for (std::int64_t k = dice.integer(1, 60); k > 0; --k) {
      ranks.push_back(rank_of("", test::any_cost(dice), dice.integer(0, 1)));
    }
    const std::int64_t batch = dice.integer(60, 3000);
    const Split split = greedy(ranks, batch);
    const Split other = threshold(ranks, batch);
    ASSERT_EQ(split.batches, other.batches) << i;
    ASSERT_EQ(split.seconds, other.seconds);
  }
}

// The continuous optimum of affine costs without caps: ranks that would get less than one sample keep one.
double water_filled(const std::vector<double>& fixed, const std::vector<double>& slope, std::int64_t batch) {
  std::vector<bool> held(fixed.size(), false);
  for (;;) {
    double left = static_cast<double>(batch);
    double sum = 0;
    double inverse = 0;
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      if (held[i]) {
        left -= 1;
      } else {
        sum += fixed[i] / slope[i];
        inverse += 1 / slope[i];
      }
    }
    const double level = (left + sum) / inverse;
    bool moved = false;
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      if (held[i] || (level - fixed[i]) / slope[i] >= 1 - 1e-12) continue;  // rounding differs between processors
      held[i] = moved = true;
    }
    if (moved) continue;
    double longest = level;
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      if (held[i]) longest = std::max(longest, fixed[i] + slope[i]);
    }
    return longest;
  }
}

TEST(Batches, LieWithinOneSampleOfTheClosedForm) {
  Dice dice(14);
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> fixed;
    std::vector<double> slope;
    std::vector<Rank> ranks;
    for (std::int64_t k = dice.integer(1, 12); k > 0; --k) {
      fixed.push_back(dice.real(0, 20));
      slope.push_back(dice.real(0.1, 4));
      ranks.push_back(rank_of("", Cost::affine(fixed.back(), slope.back())));
    }
    const std::int64_t batch = dice.integer(static_cast<std::int64_t>(ranks.size()), 400);
    const double bound = water_filled(fixed, slope, batch);
    const Split split = threshold(ranks, batch);
    ASSERT_GE(split.seconds, bound * (1 - 1e-12));
    ASSERT_LE(split.seconds, (bound + *std::max_element(slope.begin(), slope.end())) * (1 + 1e-12));
  }
}

TEST(Batches, TiesGoToTheEmptiestThenToTheLowestRank) {
  const std::vector<Rank> alike(3, rank_of("", Cost::affine(0, 1)));
  EXPECT_EQ(greedy(alike, 8).batches, (Batches{3, 3, 2}));
  const std::vector<Rank> flat(4, rank_of("", Cost::saturating(1, 1, 1000)));  // any split takes the same time
  EXPECT_EQ(threshold(flat, 66).batches, (Batches{17, 17, 16, 16}));
  EXPECT_EQ(greedy(flat, 66).batches, (Batches{17, 17, 16, 16}));
  std::vector<Rank> started = flat;  // one has more than its part from the beginning
  started[0].bounds.least = 40;
  EXPECT_EQ(threshold(started, 66).batches, (Batches{40, 9, 9, 8}));
  EXPECT_EQ(greedy(started, 66).batches, (Batches{40, 9, 9, 8}));
  const std::vector<Rank> free(2, rank_of("", Cost(), 0));
  EXPECT_EQ(threshold(free, 100000).batches, (Batches{50000, 50000}));
}

TEST(Batches, SlowRanksStayEmptyWhereTheyMay) {
  const Rank slow = rank_of("slow", Cost::affine(100, 1), 0);
  const Split split = threshold(std::vector<Rank>{rank_of("fast", Cost::affine(0, 1)), slow}, 64);
  EXPECT_EQ(split.batches, (Batches{64, 0}));
}

// Proves P-9.
TEST(Batches, ErrorsNameTheWayOut) {
  const Cost cost = Cost::affine(0, 1);
  const auto refused = [](const std::vector<Rank>& ranks, std::int64_t batch) {
    return refusal([&] { threshold(ranks, batch); });
  };
  EXPECT_EQ(
      refused({rank_of("", cost, 1, 64), rank_of("", cost, 1, 32)}, 128),
      "the caps of all ranks hold 96 samples, but the global batch is 128: raise a cap, lower the global batch, or "
      "accumulate gradients");
  EXPECT_EQ(
      refused({rank_of("", cost, 3), rank_of("", cost, 3)}, 5),
      "all ranks take at least 6 samples together, but the global batch is 5: raise the global batch, or let ranks "
      "stay empty (least = 0)");
  EXPECT_EQ(refused({rank_of("", cost, 1, 80, 8), rank_of("", cost, 1, 80, 8)}, 130),
            "a global batch of 130 is not a multiple of the quantum 8 of all ranks: 128 or 136 would work");
  EXPECT_EQ(refused({rank_of("", cost, 0, 80, 6), rank_of("", cost, 0, 80, 4)}, 25),
            "a global batch of 25 cannot be made of batches that are multiples of their ranks' quanta: 24 or 26 would "
            "work");
  EXPECT_EQ(refused({rank_of("tiny", cost, 1, 7, 8)}, 4),
            "rank 0 (tiny) takes 1 to 7 samples, but no multiple of its quantum 8 is in that range");
  EXPECT_NE(refused({}, 4).find("no ranks"), std::string::npos);
  EXPECT_NE(refused({rank_of("", cost)}, 0).find("global batch is 0"), std::string::npos);
  EXPECT_NE(refused({rank_of("", cost, 5, 4)}, 8).find("at least 5 and at most 4"), std::string::npos);
  EXPECT_NE(refused({rank_of("", cost, -1)}, 8).find("least batch -1"), std::string::npos);
  EXPECT_NE(refused({rank_of("", cost, 1, 9, 0)}, 8).find("quantum 0"), std::string::npos);
  EXPECT_NE(refused({rank_of("", cost, 0, kUnbounded, 2), rank_of("", cost)}, 1 << 22).find("2^22"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
