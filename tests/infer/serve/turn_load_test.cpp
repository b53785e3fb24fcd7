// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/turn_load.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "atoll/infer/serve/turns.h"
#include "tests/infer/infer_cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;

constexpr auto kNotOwn = [](TurnLoad::Key) { return false; };

TEST(TurnLoad, NobodyHasUsedAnything) {
  const TurnLoad load;
  EXPECT_EQ(load.of_others(3, kNotOwn, Clock::time_point{}), (wire::Load{3, 0, 0, 0}));
}

TEST(TurnLoad, WhoComputesAllTheTimeIsOneOfThoseThatCompute) {
  TurnLoad load(1s);
  const int model = 0;
  Clock::time_point now{};
  for (int i = 0; i < 100; ++i) {
    load.runs(&model, now);
    now += 100ms;
    load.rests(&model, now);
  }
  const wire::Load told = load.of_others(1, kNotOwn, now);
  EXPECT_NEAR(told.computing, 1, 1e-3);
  EXPECT_LE(told.computing, 1);
  EXPECT_EQ(told.waiting, 0);
  EXPECT_NEAR(static_cast<double>(told.turn_us), 1e5, 1);
  EXPECT_EQ(load.of_others(
                1, [&](TurnLoad::Key key) { return key == &model; }, now),
            (wire::Load{1, 0, 0, 0}));
  now += 1s;
  EXPECT_NEAR(load.of_others(1, kNotOwn, now).computing, std::exp(-1), 1e-3);
  EXPECT_NEAR(static_cast<double>(load.of_others(1, kNotOwn, now).turn_us), 1e5, 1) << "its length does not fade";
  load.forget(&model);
  EXPECT_EQ(load.known(), 0U);
  EXPECT_EQ(load.of_others(1, kNotOwn, now), (wire::Load{1, 0, 0, 0}));
}

TEST(TurnLoad, AFirstTurnIsAsLongAsItIsSoFar) {
  TurnLoad load;
  const int model = 0;
  load.runs(&model, Clock::time_point{});
  EXPECT_EQ(load.of_others(1, kNotOwn, Clock::time_point{} + 300ms).turn_us, 300'000U);
}

TEST(TurnLoad, WhoIsNotKnownRestsWithoutATrace) {
  TurnLoad load;
  const int model = 0;
  load.rests(&model, Clock::time_point{});
  EXPECT_EQ(load.known(), 0U);
}

// Compares with sums over small steps.
TEST(TurnLoad, MeansAreThoseOfTheWeightedPast) {
  test::Dice dice(71);
  constexpr int kModels = 4;
  constexpr int kSteps = 3000;  // of 10 ms
  constexpr double kMemory = 1.5;
  std::array<int, kModels> models{};
  TurnLoad load{std::chrono::duration<double>(kMemory)};
  enum { kRests, kWaits, kRuns };
  std::array<int, kModels> states{};
  double computing = 0;
  double waiting = 0;
  Clock::time_point now{};
  const double kept = std::exp(-0.01 / kMemory);
  for (int step = 0; step < kSteps; ++step) {
    const auto model = static_cast<std::size_t>(dice.integer(0, kModels - 1));
    if (dice.chance(0.2)) {
      states[model] = static_cast<int>(dice.integer(kRests, kRuns));
      if (states[model] == kRests) load.rests(&models[model], now);
      if (states[model] == kWaits) load.waits(&models[model], now);
      if (states[model] == kRuns) load.runs(&models[model], now);
    }
    now += 10ms;
    computing *= kept;
    waiting *= kept;
    for (std::size_t i = 1; i < kModels; ++i) {  // of all but the first
      computing += states[i] == kRuns ? 1 - kept : 0;
      waiting += states[i] == kWaits ? 1 - kept : 0;
    }
    const auto is_first = [&](TurnLoad::Key key) { return key == &models[0]; };
    const wire::Load told = load.of_others(kModels, is_first, now);
    ASSERT_NEAR(told.computing, computing, 1e-9) << "step " << step;
    ASSERT_NEAR(told.waiting, waiting, 1e-9) << "step " << step;
  }
}

TEST(TurnLoad, TurnsTellIt) {
  std::array<int, 3> models{};
  Turns turns(1, [](Turns::Key) {});
  Clock::time_point now{};
  turns.want(&models[0], now);
  turns.want(&models[1], now);
  now += 10s;
  const auto third = [&](Turns::Key key) { return key == &models[2]; };
  wire::Load told = turns.load_of_others(third, now);
  EXPECT_EQ(told.turns, 1U);
  EXPECT_NEAR(told.computing, 1, 0.01);
  EXPECT_NEAR(told.waiting, 1, 0.01);
  turns.over(&models[0], now);
  EXPECT_EQ(turns.load_of_others(third, now).turn_us, 10'000'000U);
  now += 20s;
  told = turns.load_of_others(third, now);
  EXPECT_NEAR(told.computing, 1, 0.01) << "the second one";
  EXPECT_NEAR(told.waiting, 0, 0.01);
  turns.forget(&models[1], now);
  EXPECT_NEAR(turns.load_of_others(third, now).computing, 0, 0.01);
  EXPECT_EQ(turns.running(), 0U);
}

}  // namespace
}  // namespace atl::infer
