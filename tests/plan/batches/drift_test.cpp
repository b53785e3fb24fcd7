// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "atoll/plan/batches/adapter.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;

TEST(Drift, TheLogarithmIsOne) {
  Dice dice(61);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::exp(dice.real(-20, 20));
    EXPECT_NEAR(natural_log(value), std::log(value), 1e-14 * std::max(1.0, std::abs(std::log(value))));
  }
  EXPECT_EQ(natural_log(1), 0);
}

// The median of ten steps whose times vary by `noise`.
double window_median(Dice& dice, double factor, double noise) {
  std::vector<double> times;
  for (int i = 0; i < 10; ++i) times.push_back(factor * std::exp(dice.normal(noise)));
  std::sort(times.begin(), times.end());
  return (times[4] + times[5]) / 2;
}

int windows_until_noticed(Dice& dice, double slowdown, double noise) {
  SpeedEstimate speed;
  for (int i = 0; i < 40; ++i) speed.observe(window_median(dice, 1, noise));
  for (int window = 1; window <= 50; ++window) {
    if (speed.observe(window_median(dice, slowdown, noise))) return window;
  }
  return 51;
}

TEST(Drift, NoticesSlowdownsAndRecoveries) {
  Dice dice(62);
  for (int i = 0; i < 300; ++i) {
    EXPECT_LE(windows_until_noticed(dice, 1.3, 0.1), 3);
    EXPECT_LE(windows_until_noticed(dice, 1 / 1.3, 0.1), 3);
  }
  double mean = 0;
  for (int i = 0; i < 300; ++i) mean += windows_until_noticed(dice, 1.1, 0.1) / 300.0;
  EXPECT_LT(mean, 6);
}

TEST(Drift, SeldomAlarmsWithoutCause) {
  Dice dice(63);
  int alarms = 0;
  constexpr int kWindows = 30000;
  for (int run = 0; run < 100; ++run) {
    SpeedEstimate speed;
    for (int i = 0; i < kWindows / 100; ++i) alarms += speed.observe(window_median(dice, 1.4, 0.1)) ? 1 : 0;
    EXPECT_NEAR(speed.factor, 1.4, 0.2);
  }
  EXPECT_LT(alarms, kWindows / 100) << "more than one per 1,000 steps of ten per window";
}

TEST(Drift, FollowsAChange) {
  Dice dice(64);
  SpeedEstimate speed;
  EXPECT_EQ(speed.factor, 1);
  for (int i = 0; i < 30; ++i) speed.observe(window_median(dice, 2, 0.02));
  EXPECT_NEAR(speed.factor, 2, 0.05);
  for (int i = 0; i < 10; ++i) speed.observe(window_median(dice, 3, 0.02));
  EXPECT_NEAR(speed.factor, 3, 0.1);
}

}  // namespace
}  // namespace atl::plan
