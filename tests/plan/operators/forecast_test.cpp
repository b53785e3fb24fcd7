// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/forecast.h"

#include <algorithm>
#include <cmath>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::refusal;

constexpr double kMega = 1e6;

// An autoregressive process of the logarithm.
std::vector<double> wandering(Dice& dice, double kept, int count) {
  std::vector<double> rates;
  double at = 0;
  for (int i = 0; i < count; ++i) {
    at = kept * at + std::sqrt(1 - kept * kept) * dice.normal(1);
    rates.push_back(kMega * std::exp(at));
  }
  return rates;
}

double mean_of(const std::vector<RateWeight>& likely) {
  double sum = 0;
  double weights = 0;
  for (const RateWeight& each : likely) {
    sum += each.weight * std::log(each.rate);
    weights += each.weight;
  }
  return sum / weights;
}

double deviation_of(const std::vector<RateWeight>& likely) {
  const double mean = mean_of(likely);
  double sum = 0;
  for (const RateWeight& each : likely) sum += std::pow(std::log(each.rate) - mean, 2);
  return std::sqrt(sum / static_cast<double>(likely.size()));
}

TEST(Forecast, ThePastHasQuantilesAndCorrelation) {
  const LinkPast few(0.5, {4, 1, 3, 2});
  EXPECT_EQ(few.median(), 2);
  EXPECT_EQ(few.quantile(0.01), 1);
  EXPECT_EQ(few.quantile(0.75), 3);
  EXPECT_EQ(few.quantile(1), 4);
  Dice dice(311);
  const LinkPast past(0.5, wandering(dice, 0.9, 20'000));
  EXPECT_NEAR(past.correlation(), 0.9, 0.02);
  EXPECT_NEAR(past.deviation_log(), 1, 0.1);
  EXPECT_NEAR(past.mean_log(), std::log(kMega), 0.15);
  EXPECT_EQ(LinkPast(1, {5, 5, 5}).correlation(), 1);
}

TEST(Forecast, OfTheLastRate) {
  const LinkPast past(0.5, {1 * kMega, 2 * kMega, 9 * kMega});
  const std::vector<SeenRate> seen{{1, 7 * kMega}, {2, 5 * kMega}};
  const auto last = forecast("last", past, seen, 100);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].rate, 5 * kMega);
  EXPECT_EQ(forecast("last", past, {}, 0)[0].rate, 2 * kMega);
  const auto recent = forecast("recent", past, seen, 6.5);
  ASSERT_EQ(recent.size(), 1U);  // the other is older than 5 s
  EXPECT_EQ(recent[0].rate, 5 * kMega);
}

// A low rate is trusted while it is recent, and ignored when nothing was sent for long.
TEST(Forecast, AgesTowardsTheLongRun) {
  Dice dice(312);
  const LinkPast past(0.5, wandering(dice, 0.9, 5000));
  const std::vector<SeenRate> seen{{10, kMega / 20}};
  for (const std::string name : {"aged", "ar1", "neighbours"}) {
    double before = -1e9;
    for (const double age : {0.0, 1.0, 4.0, 30.0}) {
      const double mean = mean_of(forecast(name, past, seen, 10 + age));
      EXPECT_GT(mean, before - 0.1) << name << " after " << age;
      before = mean;
    }
    EXPECT_LT(mean_of(forecast(name, past, seen, 10)), std::log(kMega / 5)) << name;
    EXPECT_NEAR(before, std::log(past.median()), 0.3) << name;
  }
}

TEST(Forecast, SpreadsAsTheProcessDoes) {
  Dice dice(313);
  const LinkPast past(0.5, wandering(dice, 0.9, 20'000));
  const std::vector<SeenRate> seen{{10, kMega}};
  for (const std::string name : {"ar1", "neighbours"}) {
    const double soon = deviation_of(forecast(name, past, seen, 10.25));
    const double late = deviation_of(forecast(name, past, seen, 14.75));
    EXPECT_NEAR(soon, std::sqrt(1 - 0.81), 0.12) << name;
    EXPECT_GT(late, 1.5 * soon) << name;
    EXPECT_LT(late, 1.3) << name;
  }
}

TEST(Forecast, EveryNameGivesRatesThatCanBeChosenBy) {
  Dice dice(314);
  for (int i = 0; i < 50; ++i) {
    std::vector<double> rates;
    for (std::int64_t k = dice.integer(1, 30); k > 0; --k) rates.push_back(dice.chance(0.3) ? 0 : dice.real(0, 1e7));
    const LinkPast past(0.5, rates);
    std::vector<SeenRate> seen;
    for (std::int64_t k = dice.integer(0, 3); k > 0; --k)
      seen.push_back({4.0 - static_cast<double>(k), dice.real(0, 1e7)});
    for (const std::string& name : forecasts()) {
      const auto likely = forecast(name, past, seen, 4 + dice.real(0, 20));
      ASSERT_FALSE(likely.empty()) << name;
      for (const RateWeight& each : likely) {
        ASSERT_TRUE(std::isfinite(each.rate) && each.rate >= 0) << name;
        ASSERT_GT(each.weight, 0) << name;
      }
    }
  }
}

TEST(Forecast, NamesWhatIsWrong) {
  const LinkPast past(0.5, {1, 2});
  EXPECT_NE(refusal([&] { forecast("tea leaves", past, {}, 0); }).find("last, aged, recent"), std::string::npos);
  EXPECT_NE(refusal([] { LinkPast(0.5, {}); }).find("no bins"), std::string::npos);
  EXPECT_NE(refusal([] { LinkPast(0, {1, 2}); }).find("last 0 s"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
