// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/trace.h"

#include <cmath>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::Dice;
using test::refusal;

TEST(Trace, CarriesWhatItsBinsSay) {
  const Trace trace(0.5, {10, 0, 40});
  EXPECT_DOUBLE_EQ(trace.seconds(), 1.5);
  EXPECT_DOUBLE_EQ(trace.bytes(Lane::kUp, 0, 1.5), 25);
  EXPECT_DOUBLE_EQ(trace.bytes(Lane::kDown, 0.25, 1.25), 2.5 + 10);
  EXPECT_DOUBLE_EQ(trace.bytes(Lane::kUp, 1.25, 1.75), 10 + 2.5);
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 0, 2.5), 0.25);
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 0, 5), 0.5);
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 0.25, 4.5), 1.05);  // 2.5, nothing, then 2 at 40
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 0.75, 20 + 5), 2);  // into the next turn
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 0, 250), 15);       // ten whole turns
  EXPECT_DOUBLE_EQ(trace.end(Lane::kUp, 3, 0), 3);
}

TEST(Trace, HasRatesOfItsOwnForTheWayDown) {
  const Trace trace(1, {10, 20}, {1, 2});
  EXPECT_DOUBLE_EQ(trace.bytes(Lane::kUp, 0, 2), 30);
  EXPECT_DOUBLE_EQ(trace.bytes(Lane::kDown, 0, 2), 3);
  EXPECT_EQ(trace.rate_before(Lane::kUp, 0), 20);
  EXPECT_EQ(trace.rate_before(Lane::kUp, 1), 10);
  EXPECT_EQ(trace.rate_before(Lane::kDown, 2.5), 2);
  EXPECT_EQ(trace.rate_before(Lane::kDown, 3.5), 1);
}

TEST(Trace, OnWhichNothingFlowsNeverEnds) {
  const Trace trace(0.5, {0, 0});
  EXPECT_TRUE(std::isinf(trace.end(Lane::kUp, 0.3, 1)));
  EXPECT_EQ(trace.end(Lane::kUp, 0.3, 0), 0.3);
  EXPECT_EQ(trace.bytes(Lane::kUp, 0, 100), 0);
}

// When bytes are off the link is the inverse of how many are off it by then, and pieces take as long as the whole.
TEST(Trace, EndAndBytesAreInverse) {
  Dice dice(301);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> rates;
    for (std::int64_t k = dice.integer(1, 8); k > 0; --k) rates.push_back(dice.chance(0.3) ? 0 : dice.real(0, 1000));
    rates.push_back(dice.real(1, 1000));
    const Trace trace(dice.real(0.05, 2), rates);
    const double begin = dice.real(0, 40);
    const double bytes = dice.real(0, 5000);
    const double end = trace.end(Lane::kUp, begin, bytes);
    ASSERT_GE(end, begin);
    ASSERT_NEAR(trace.bytes(Lane::kUp, begin, end), bytes, 1e-6) << i;
    const double part = dice.real(0, bytes);
    const double pieces = trace.end(Lane::kUp, trace.end(Lane::kUp, begin, part), bytes - part);
    ASSERT_NEAR(trace.bytes(Lane::kUp, begin, pieces), bytes, 1e-6) << i;
    ASSERT_LE(trace.end(Lane::kUp, begin, part), end + 1e-9) << i;
    ASSERT_LE(end, trace.end(Lane::kUp, begin + dice.real(0, 3), bytes) + 1e-9) << i;
  }
}

TEST(Trace, NamesWhatIsWrong) {
  EXPECT_NE(refusal([] { Trace(0, {1}); }).find("last 0 s"), std::string::npos);
  EXPECT_NE(refusal([] { Trace(1, {}); }).find("no bins"), std::string::npos);
  EXPECT_NE(refusal([] { Trace(1, {1, -1}); }).find("bin 1 of a trace is -1"), std::string::npos);
  EXPECT_NE(refusal([] { Trace(1, {1, 2}, {1}); }).find("2 bins up and 1 down"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
