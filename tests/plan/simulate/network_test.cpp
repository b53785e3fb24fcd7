// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "tests/plan/plan_cases.h"

namespace atl::plan::simulated {
namespace {

using plan::test::Dice;

constexpr double kAny = HUGE_VAL;

struct Known {
  std::vector<int> rails;
  double most;
  double bytes;
  double moved = 0;
};

// What defines max-min fairness: nothing is over its rate, and each flow has its most or is on a full rail on which
// none is faster. There is only one such division.
void expect_fair(const FairRails& network, const std::map<int, Known>& flows) {
  for (int rail = 0; rail < network.rails(); ++rail) {
    double sum = 0;
    for (const auto& [index, flow] : flows) {
      for (const int each : flow.rails) sum += each == rail ? network.rate(index) : 0;
    }
    ASSERT_LE(sum, network.bytes_per_second(rail) * (1 + 1e-8));
    ASSERT_NEAR(sum, network.used(rail), 1e-9 * sum);
  }
  for (const auto& [index, flow] : flows) {
    const double rate = network.rate(index);
    ASSERT_GT(rate, 0);
    ASSERT_LE(rate, flow.most * (1 + 1e-12));
    bool is_held = rate >= flow.most * (1 - 1e-8);
    for (const int rail : flow.rails) {
      const bool is_full = network.used(rail) >= network.bytes_per_second(rail) * (1 - 1e-8);
      double fastest = 0;
      for (const auto& [other, its] : flows) {
        for (const int each : its.rails) fastest = std::max(fastest, each == rail ? network.rate(other) : 0.0);
      }
      is_held = is_held || (is_full && rate >= fastest * (1 - 1e-8));
    }
    ASSERT_TRUE(is_held) << "flow " << index << " could be faster than " << rate;
  }
}

TEST(SimulatedNetwork, FlowsShareARail) {
  FairRails network;
  const int rail = network.add(100);
  const int a = network.start({rail}, kAny, 100, 0);
  network.settle(0);
  EXPECT_EQ(network.rate(a), 100);
  EXPECT_EQ(network.next(), 1);
  const int b = network.start({rail}, kAny, 100, 0.5);  // `a` has 50 bytes left
  network.settle(0.5);
  EXPECT_EQ(network.rate(a), 50);
  EXPECT_EQ(network.rate(b), 50);
  EXPECT_EQ(network.next(), 1.5);
  EXPECT_EQ(network.finish(1.5), std::vector<int>{a});
  network.settle(1.5);
  EXPECT_EQ(network.rate(b), 100);
  EXPECT_EQ(network.next(), 2);
  EXPECT_EQ(network.finish(2), std::vector<int>{b});
  EXPECT_TRUE(std::isinf(network.next()));
  EXPECT_EQ(network.carried(rail), 200);
}

TEST(SimulatedNetwork, WhatOneCannotUseIsTheOthers) {
  FairRails network;
  const int wide = network.add(100);
  const int narrow = network.add(20);
  const int slow = network.start({wide, narrow}, kAny, 1, 0);
  const int fast = network.start({wide}, kAny, 1, 0);
  const int meek = network.start({wide}, 30, 1, 0);
  network.settle(0);
  EXPECT_EQ(network.rate(slow), 20);
  EXPECT_EQ(network.rate(meek), 30);
  EXPECT_EQ(network.rate(fast), 50);
}

TEST(SimulatedNetwork, ARailThatIsUsedTwiceCarriesTwice) {
  FairRails network;
  const int rail = network.add(90);
  const int twice = network.start({rail, rail}, kAny, 1, 0);
  network.settle(0);
  EXPECT_EQ(network.rate(twice), 45);
  const int once = network.start({rail}, kAny, 1, 0);
  network.settle(0);
  EXPECT_EQ(network.rate(twice), 30);
  EXPECT_EQ(network.rate(once), 30);
  EXPECT_EQ(network.used(rail), 90);
}

TEST(SimulatedNetwork, KeepsItsPromisesForAnyFlows) {
  Dice dice(701);
  for (int round = 0; round < 60; ++round) {
    FairRails network;
    const bool is_round = dice.chance(0.5);
    const auto amount = [&](std::int64_t most) {
      return is_round ? static_cast<double>(dice.integer(1, most)) : dice.real(0.1, static_cast<double>(most));
    };
    const auto rails = static_cast<int>(dice.integer(1, 8));
    for (int i = 0; i < rails; ++i) network.add(amount(20));
    std::map<int, Known> flows;
    double now = 0;
    int ended = 0;
    for (int i = 0; i < 80; ++i) {
      const double next = network.next();
      const bool ends = !flows.empty() && (flows.size() > 12 || dice.chance(0.5));
      const double then = ends ? next : std::isinf(next) ? now + amount(3) : now + dice.real(0, 1) * (next - now);
      for (auto& [index, flow] : flows) flow.moved += network.rate(index) * (then - now);
      now = then;
      for (const int index : network.finish(now)) {
        ASSERT_NEAR(flows.at(index).moved, flows.at(index).bytes, 1e-7 * flows.at(index).bytes);
        flows.erase(index);
        ++ended;
      }
      if (!ends) {
        Known flow{{}, dice.chance(0.3) ? amount(10) : kAny, amount(50)};
        for (std::int64_t k = dice.integer(1, 3); k > 0; --k) {
          flow.rails.push_back(static_cast<int>(dice.integer(0, rails - 1)));
        }
        flows.emplace(network.start(flow.rails, flow.most, flow.bytes, now), flow);
      }
      network.settle(now);
      ASSERT_NO_FATAL_FAILURE(expect_fair(network, flows)) << "round " << round << ", change " << i;
    }
    EXPECT_GT(ended, 5);
  }
}

// Endings that no longer count do not pile up.
TEST(SimulatedNetwork, ManyChangesOfOneFlow) {
  FairRails network;
  const int rail = network.add(1);
  network.start({rail}, kAny, 1000, 0);
  network.settle(0);
  double now = 0;
  for (int i = 0; i < 5000; ++i) {
    const int brief = network.start({rail}, kAny, 0.01, now);
    network.settle(now);
    now = network.next();
    ASSERT_EQ(network.finish(now), std::vector<int>{brief});
    network.settle(now);
  }
  EXPECT_NEAR(network.next(), 1000 + 5000 * 0.01, 1e-6);
}

}  // namespace
}  // namespace atl::plan::simulated
