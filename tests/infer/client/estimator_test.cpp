// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/infer/infer_cases.h"

namespace atl::infer {
namespace {

using test::Dice;

constexpr double kTrip = 0.004;
constexpr double kLinkFrame = 16'384;

/// A link in fake time whose rate changes every half second; messages go one after the other.
class FakeLink {
 public:
  explicit FakeLink(std::vector<double> rates) : rates_(std::move(rates)) {}

  double rate(double time) const { return rates_[static_cast<std::size_t>(time / 0.5) % rates_.size()]; }
  /// When `bytes` that start at `begin` have been sent.
  double end(double begin, double bytes) const {
    double time = begin;
    for (;;) {
      const double bin_end = (std::floor(time / 0.5 + 1e-9) + 1) * 0.5;
      const double there = rate(time + 1e-9) * (bin_end - time);
      if (there >= bytes) return time + bytes / rate(time + 1e-9);
      bytes -= there;
      time = bin_end;
    }
  }
  /// Sends a message and returns when its acknowledgement arrives.
  double carry(BandwidthEstimate& estimate, double now, std::uint64_t number, double bytes, double frame = kLinkFrame) {
    const BandwidthEstimate::Key key{number, 0, 0};
    estimate.sent(now, key, bytes);
    const double first = std::min(bytes, frame);
    const double started = end(std::max(now, free_), first);
    free_ = end(started, bytes - first);
    const double acknowledged = free_ + kTrip;
    estimate.acknowledged(acknowledged, key, free_ - started, first);
    return acknowledged;
  }

 private:
  std::vector<double> rates_;
  double free_ = 0;
};

BandwidthEstimate with_trip() {
  BandwidthEstimate estimate;
  estimate.round_trip(kTrip);
  return estimate;
}

TEST(Estimator, FindsAConstantRate) {
  for (const double rate : {1e5, 1e6, 1.2e7, 1e8}) {
    BandwidthEstimate estimate = with_trip();
    FakeLink link({rate});
    double now = 0;
    for (std::uint64_t i = 1; i <= 20; ++i) now = link.carry(estimate, now, i, 150'000) + 0.01;
    EXPECT_NEAR(estimate.rate(now) / rate, 1, 0.02) << rate;
    EXPECT_LT(estimate.forecast_error().median, 0.05);
    EXPECT_EQ(estimate.forecast_error().messages, 20U);
  }
}

TEST(Estimator, SmallMessagesOnlyRaiseIt) {
  BandwidthEstimate estimate = with_trip();
  const double before = estimate.rate(0);
  FakeLink link({1e9});
  double now = 0;
  for (std::uint64_t i = 1; i <= 100; ++i) now = link.carry(estimate, now, i, 500) + 0.01;
  EXPECT_EQ(estimate.rate(now), before);
  now = link.carry(estimate, now, 101, 300'000, 1e9);  // one frame, which took a round trip at most
  EXPECT_GT(estimate.rate(now), 300'000 / kTrip / 1.1);
}

TEST(Estimator, MessagesThatFollowOneAnotherMeasureTogether) {
  for (const bool at_once : {false, true}) {
    BandwidthEstimate estimate = with_trip();
    const double rate = 1e7;
    double now = 0;
    for (std::uint64_t round = 0; round < 10; ++round) {
      const double begin = now;
      for (std::uint64_t i = 1; i <= 8; ++i)
        estimate.sent(begin + 1e-5 * static_cast<double>(i), {8 * round + i, 0, 0}, 19'000);
      for (std::uint64_t i = 1; i <= 8; ++i) {
        const std::uint64_t number = 8 * round + i;
        const double there = begin + kTrip + 19'000 * static_cast<double>(at_once ? 8 : i) / rate;
        estimate.acknowledged(there, {number, 0, 0}, 0, 19'000);
        now = there + 0.05;
      }
    }
    EXPECT_NEAR(estimate.rate(now) / rate, 1, 0.25) << at_once;
  }
}

TEST(Estimator, AnOverdueMessageLowersItAtOnce) {
  BandwidthEstimate estimate = with_trip();
  FakeLink link({1e7});
  double now = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) now = link.carry(estimate, now, i, 150'000) + 0.01;
  estimate.sent(now, {21, 0, 0}, 150'000);
  EXPECT_FALSE(estimate.is_overdue(now + 0.02));
  double last = estimate.rate(now + 0.02);
  for (double waited = 0.1; waited < 10; waited *= 2) {
    EXPECT_TRUE(estimate.is_overdue(now + waited));
    EXPECT_LE(estimate.rate(now + waited), 150'000 / (waited - 0.03));
    EXPECT_LT(estimate.rate(now + waited), last);
    last = estimate.rate(now + waited);
  }
  estimate.lost(now + 10);
  EXPECT_FALSE(estimate.is_overdue(now + 10));
}

TEST(Estimator, WhatTheOtherSideIsThroughWithDoesNotLowerIt) {
  BandwidthEstimate estimate = with_trip();
  FakeLink link({1e6});
  double now = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) now = link.carry(estimate, now, i, 2e5);
  const double before = estimate.rate(now);
  estimate.sent(now, {21, 0, 0}, 2e5);
  estimate.sent(now, {21, 0, 7}, 2e5);
  EXPECT_LT(estimate.rate(now + 5), 0.2 * before);
  estimate.ended(21);
  EXPECT_FALSE(estimate.has_outstanding());
  EXPECT_GT(estimate.rate(now + 5), 0.5 * before);
}

TEST(Estimator, AgesTowardsTheMedianNotTheLastValue) {
  BandwidthEstimate estimate = with_trip();
  FakeLink fast({1e7});
  double now = 0;
  std::uint64_t number = 0;
  while (now < 30) now = fast.carry(estimate, now, ++number, 150'000) + 0.1;
  FakeLink slow({5e4});
  for (int i = 0; i < 2; ++i) now = slow.carry(estimate, now, ++number, 150'000) + 0.1;
  EXPECT_LT(estimate.rate(now), 1e5);
  double last = estimate.rate(now);
  for (int i = 0; i < 40; ++i) {
    now += 1;
    EXPECT_GE(estimate.rate(now), last);
    last = estimate.rate(now);
  }
  EXPECT_GT(last, 0.9e7);
  EXPECT_GT(estimate.long_run(), 0.9e7);
}

TEST(Estimator, IsBackWithinOneProbeAfterAnOutage) {
  Dice dice(7);
  for (int trial = 0; trial < 200; ++trial) {
    BandwidthEstimate estimate = with_trip();
    const double rate = std::exp(dice.real(std::log(2e5), std::log(5e7)));
    FakeLink link({rate});
    double now = 0;
    std::uint64_t number = 0;
    const int before = static_cast<int>(dice.integer(1, 50));
    for (int i = 0; i < before; ++i)
      now = link.carry(estimate, now, ++number, dice.real(100, 400'000)) + dice.real(0, 0.3);
    const double outage = dice.real(1, 20);
    estimate.sent(now, {++number, 0, 0}, 150'000);
    if (dice.chance(0.5)) {
      estimate.lost(now + 2);
    } else {  // it arrives at the end, and took the whole outage
      estimate.acknowledged(now + outage, {number, 0, 0}, dice.chance(0.5) ? outage : 0.01, kLinkFrame);
    }
    now += outage;
    FakeLink again({rate});
    now = again.carry(estimate, now + 0.5, 0, 65'536);
    EXPECT_NEAR(estimate.rate(now) / rate, 1, 0.5) << "trial " << trial << ", outage " << outage << " s at " << rate;
  }
}

TEST(Estimator, WhatIsLikelyAddsUp) {
  Dice dice(8);
  BandwidthEstimate estimate = with_trip();
  FakeLink link({1e7, 2e6, 4e6, 3e5});
  double now = 0;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    now = link.carry(estimate, now, i, dice.real(1, 300'000)) + dice.real(0, 1);
    const auto rates = estimate.likely(now, dice.real(0, 1));
    double sum = 0;
    for (const plan::RateWeight& each : rates) {
      EXPECT_GT(each.rate, 0);
      EXPECT_GE(each.weight, 0);
      sum += each.weight;
    }
    EXPECT_NEAR(sum, 1, 1e-9);
  }
  // Long after, only the history counts.
  double spread = 0;
  for (const plan::RateWeight& each : estimate.likely(now + 100, 0)) spread = std::max(spread, each.weight);
  EXPECT_NEAR(spread, 0.2, 0.01);
}

TEST(Estimator, NeverAnsweredNeverThrows) {
  Dice dice(9);
  for (int trial = 0; trial < 200; ++trial) {
    BandwidthEstimate estimate;
    double now = dice.real(0, 100);
    for (int i = 0; i < 60; ++i) {
      now += dice.real(0, 0.5);
      const BandwidthEstimate::Key key{static_cast<std::uint64_t>(dice.integer(0, 5)), 0, 0};
      switch (dice.integer(0, 4)) {
        case 0: estimate.sent(now, key, dice.real(0, 1e6)); break;
        case 1: estimate.acknowledged(now, key, dice.real(0, 1), dice.real(0, 1e6)); break;
        case 2: estimate.received(now, dice.real(0, 1e6), dice.real(0, 1), dice.real(0, 1e6)); break;
        case 3: estimate.round_trip(dice.real(0, 0.1)); break;
        default: estimate.lost(now); break;
      }
      ASSERT_GT(estimate.rate(now), 0);
      ASSERT_TRUE(std::isfinite(estimate.rate(now)));
      ASSERT_GE(estimate.forecast_error().high, estimate.forecast_error().median);
    }
  }
}

std::vector<double> outdoors() {
  const auto path = std::filesystem::path(ATOLL_TESTS_FOLDER) / "data" / "intradp" / "bandwidth_outdoors.csv";
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::vector<double> rates;
  while (std::getline(file, line)) {
    std::stringstream cells(line);
    std::string cell;
    for (int i = 0; i < 3; ++i) std::getline(cells, cell, ',');
    rates.push_back(std::max(1000.0, std::stod(cell) / 8));
  }
  return rates;
}

// A robot outdoors makes ten inferences a second, and sends only if the estimate is good enough; otherwise it probes.
TEST(Estimator, FollowsTheOutdoorsRecordAndNeverStaysLow) {
  const std::vector<double> rates = outdoors();
  ASSERT_GT(rates.size(), 2000U);
  BandwidthEstimate estimate = with_trip();
  FakeLink link(rates);
  double now = 0;
  std::uint64_t number = 0;
  int good = 0;
  int low = 0;
  while (now < 0.5 * static_cast<double>(rates.size()) - 30) {
    const auto bin = static_cast<std::size_t>(now / 0.5);
    const double least = bin < 3 ? 0 : std::min({rates[bin], rates[bin - 1], rates[bin - 2]});
    if (least > 5e6) {  // 40 Mbit/s for a second at least
      ++good;
      if (estimate.rate(now) < least / 4) ++low;
    }
    if (estimate.rate(now) > 2e6) {
      now = std::max(now + 0.1, link.carry(estimate, now, ++number, 150'528));
    } else if (estimate.age(now) > 0.5) {
      now = std::max(now + 0.1, link.carry(estimate, now, 0, 65'536));
    } else {
      now += 0.1;
    }
  }
  EXPECT_GT(good, 1000);
  EXPECT_LT(low, good / 50);
  EXPECT_LT(estimate.forecast_error().median, 0.5);
  std::cout << "forecast error outdoors: median " << estimate.forecast_error().median << ", 90 % below "
            << estimate.forecast_error().high << '\n';
}

TEST(Estimator, AMessageThatIsGivenUpTellsThatTheLinkIsSlow) {
  BandwidthEstimate estimate = with_trip();
  FakeLink link({1e7});
  double now = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) now = link.carry(estimate, now, i, 150'000) + 0.01;
  ASSERT_GT(estimate.rate(now), 8e6);
  estimate.sent(now, {21, 0, 0}, 7e6);
  estimate.given_up(now + 2, {21, 0, 0}, 200'000);  // 100 kB/s at most
  EXPECT_FALSE(estimate.has_outstanding());
  EXPECT_LT(estimate.rate(now + 2), 5e5);
  estimate.acknowledged(now + 3, {21, 0, 0}, 0.1, 100);  // given up, so it is ignored
  EXPECT_LT(estimate.rate(now + 3), 1e6);
}

TEST(Estimator, AMessageThatIsGivenUpWhileItWentWellTellsNothing) {
  BandwidthEstimate estimate = with_trip();
  FakeLink link({1e6});
  double now = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) now = link.carry(estimate, now, i, 150'000) + 0.01;
  const double before = estimate.rate(now + 0.5);
  BandwidthEstimate same = estimate;
  estimate.sent(now, {21, 0, 0}, 7e6);
  estimate.given_up(now + 0.1, {21, 0, 0}, 300'000);  // of which most is still in the kernel
  EXPECT_DOUBLE_EQ(estimate.rate(now + 0.5), before);
  estimate.given_up(now + 0.1, {99, 0, 0}, 0);  // was never sent
  EXPECT_DOUBLE_EQ(estimate.rate(now + 0.5), same.rate(now + 0.5));
}

}  // namespace
}  // namespace atl::infer
