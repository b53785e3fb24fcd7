// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/plan/batches/batches.h"

namespace atl::plan::test {

/// Seeded random numbers for instances.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  double normal(double deviation) { return std::normal_distribution<double>(0, deviation)(engine_); }
  bool chance(double share) { return real(0, 1) < share; }

 private:
  std::mt19937_64 engine_;
};

/// Returns any shape, sometimes scaled, sometimes with overlapped collectives; parameters are often round, so that ties
/// occur.
inline Cost any_cost(Dice& dice) {
  const bool round = dice.chance(0.3);
  const auto amount = [&](double most) {
    return round ? static_cast<double>(dice.integer(0, static_cast<std::int64_t>(most))) : dice.real(0, most);
  };
  Cost cost;
  switch (dice.integer(0, 3)) {
    case 0: cost = Cost::affine(amount(10), amount(5)); break;
    case 1: cost = Cost::saturating(amount(10), amount(5), amount(15)); break;
    case 2: cost = Cost::staircase(dice.integer(1, 6), amount(8), amount(4)); break;
    default: {
      std::vector<Point> points;
      for (std::int64_t i = dice.integer(1, 5); i > 0; --i) {
        points.push_back({static_cast<double>(dice.integer(1, 20)), amount(60)});
      }
      cost = Cost::table(points);
    }
  }
  if (dice.chance(0.3)) cost = cost.scaled(dice.real(0.3, 3));
  if (dice.chance(0.3)) {
    std::vector<Bucket> buckets;
    for (std::int64_t i = dice.integer(1, 4); i > 0; --i) buckets.push_back({dice.real(0, 1), amount(10)});
    cost = cost.overlapped(dice.real(0, 1), buckets);
  }
  return cost;
}

struct Instance {
  std::vector<Rank> ranks;
  std::int64_t batch = 0;
};

inline Instance any_instance(Dice& dice, std::int64_t most_batch, bool unequal_quanta) {
  Instance instance;
  instance.batch = dice.integer(1, most_batch);
  const std::int64_t common = dice.chance(0.7) ? 1 : dice.integer(2, 4);
  for (std::int64_t i = dice.integer(2, 4); i > 0; --i) {
    Rank rank;
    rank.cost = any_cost(dice);
    rank.bounds.least = dice.chance(0.4) ? 0 : dice.chance(0.8) ? 1 : dice.integer(2, 5);
    rank.bounds.most = dice.chance(0.5) ? kUnbounded : dice.integer(rank.bounds.least, most_batch);
    rank.bounds.quantum = unequal_quanta ? dice.integer(1, 5) : common;
    instance.ranks.push_back(rank);
  }
  if (!unequal_quanta && dice.chance(0.8)) instance.batch = (instance.batch + common - 1) / common * common;
  return instance;
}

/// Calls `visit` with each split of `instance` within its bounds.
inline void each_split(const Instance& instance, const std::function<void(const std::vector<std::int64_t>&)>& visit) {
  std::vector<std::int64_t> batches(instance.ranks.size(), 0);
  const std::function<void(std::size_t, std::int64_t)> choose = [&](std::size_t rank, std::int64_t left) {
    if (rank == batches.size()) {
      if (left == 0) visit(batches);
      return;
    }
    const Bounds& bounds = instance.ranks[rank].bounds;
    for (std::int64_t batch = 0; batch <= std::min(left, bounds.most); ++batch) {
      if (batch < bounds.least || batch % bounds.quantum != 0) continue;
      batches[rank] = batch;
      choose(rank + 1, left - batch);
    }
  };
  choose(0, instance.batch);
}

/// Returns the message of the kInvalidArgument error that `call` throws; an empty string if it throws nothing.
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    return error.what();
  }
  return {};
}

inline Rank rank_of(const std::string& name, const Cost& cost, std::int64_t least = 1, std::int64_t most = kUnbounded,
                    std::int64_t quantum = 1) {
  Rank rank;
  rank.name = name;
  rank.cost = cost;
  rank.bounds = {least, most, quantum};
  return rank;
}

}  // namespace atl::plan::test
