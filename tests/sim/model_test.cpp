// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace atl::sim {
namespace {

using namespace std::chrono_literals;

double us(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }

/// Returns a kind with 10 Gflop/s, 5 GB/s and 5 us per launch; "sort" is slow, and no operator takes less than 20 us.
DeviceKind kind() {
  DeviceKind made;
  made.usual = {10e9, 5e9, 20e-6};
  made.operators["sort"] = {10e9, 1e9, 20e-6};
  return made;
}

TEST(Model, TheLargestOfFlopsBytesAndFillingCounts) {
  Model model(kind(), 1, 0, 0);
  EXPECT_NEAR(us(model.operator_time("mm", 1e6, 1e3)), 105, 0.01);
  EXPECT_NEAR(us(model.operator_time("add", 0, 1e6)), 205, 0.01);
  EXPECT_NEAR(us(model.operator_time("sort", 0, 1e6)), 1005, 0.01) << "by its name";
  EXPECT_NEAR(us(model.operator_time("mm", 1e3, 1e3)), 25, 0.01) << "does not fill the device";
  Model half(kind(), 0.5, 0, 0);
  EXPECT_NEAR(us(half.operator_time("mm", 1e6, 1e3)), 210, 0.01);
  Model none(kind(), 0, 0, 0);
  EXPECT_EQ(none.operator_time("mm", 1e9, 1e9), 0ns);
}

TEST(Model, TimesGrowFromTheKneeOn) {
  Model model(kind(), 1, 0, 0);
  double before = 0;
  for (int batch = 1; batch <= 64; batch *= 2) {
    const double time = us(model.operator_time("mm", batch * 2.5e4, 0));
    EXPECT_NEAR(time, batch <= 8 ? 25 : 2 * (before - 5) + 5, 0.01) << batch;
    before = time;
  }
}

TEST(Model, CopiesOfPageableMemoryAreSlower) {
  DeviceKind made = kind();
  made.pageable = 0.5;
  const Model model(made, 0, 1e9, 0);
  EXPECT_NEAR(us(model.copy_time(1000, true)), 1, 0.001);
  EXPECT_NEAR(us(model.copy_time(1000, false)), 2, 0.001);
  EXPECT_EQ(Model(made, 1, 0, 0).copy_time(1000, true), 0ns);
}

TEST(Model, JitterKeepsTheMeanAndFollowsItsSeed) {
  DeviceKind made = kind();
  made.jitter = 0.1;
  Model one(made, 1, 0, 7);
  Model same(made, 1, 0, 7);
  Model other(made, 1, 0, 8);
  double sum = 0;
  double squares = 0;
  int differ = 0;
  constexpr int kTimes = 20000;
  for (int i = 0; i < kTimes; ++i) {
    const double time = us(one.operator_time("mm", 1e6, 0)) / 105;
    sum += time;
    squares += time * time;
    EXPECT_EQ(time, us(same.operator_time("mm", 1e6, 0)) / 105);
    differ += time != us(other.operator_time("mm", 1e6, 0)) / 105;
  }
  const double mean = sum / kTimes;
  EXPECT_NEAR(mean, 1, 0.005);
  EXPECT_NEAR(std::sqrt(squares / kTimes - mean * mean), 0.1, 0.005);
  EXPECT_GT(differ, kTimes / 2);
}

TEST(Model, WorkWithoutAPauseMakesItSlower) {
  DeviceKind made = kind();
  made.warm_after_s = 10;
  made.warm_speed = 0.5;
  Model model(made, 1, 0, 0);
  // Half a second of work each, issued ahead of the device.
  const double cold = us(model.operator_time("mm", 5e9, 0));
  EXPECT_LT(cold, 1.1 * 0.5e6);
  double last = cold;
  for (int i = 0; i < 200; ++i) {
    const double time = us(model.operator_time("mm", 5e9, 0));
    EXPECT_GE(time, last * 0.999);
    last = time;
  }
  EXPECT_NEAR(last, 1e6, 0.02e6) << "warm through";
}

TEST(Model, APauseLetsItCool) {
  DeviceKind made = kind();
  made.warm_after_s = 0.01;
  made.warm_speed = 0.5;
  Model model(made, 1, 0, 0);
  const auto now = Model::Clock::now();
  EXPECT_NEAR(us(model.operator_time("mm", 1e9, 0, now)), 2e5, 1e3);
  EXPECT_NEAR(us(model.operator_time("add", 0, 5e4, now)), 50, 0.1) << "still warm";
  EXPECT_NEAR(us(model.operator_time("add", 0, 5e4, now + 10ms)), 25 / 0.75, 0.5) << "by half";
  EXPECT_NEAR(us(model.operator_time("add", 0, 5e4, now + 200ms)), 25, 0.1);
}

}  // namespace
}  // namespace atl::sim
