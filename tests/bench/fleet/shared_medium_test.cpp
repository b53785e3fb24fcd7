// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/shared_medium.h"

#include <cmath>

#include "tests/plan/plan_cases.h"

namespace atl::plan::fleet {
namespace {

using test::Dice;

TEST(SharedMedium, OneMessageHasAllTheTime) {
  SharedMedium medium(1);
  EXPECT_EQ(medium.next(), HUGE_VAL);
  medium.start(7, 4, {3, 1, 0}, 10);
  EXPECT_EQ(medium.next(), 11);
  EXPECT_TRUE(medium.pass(10.5).empty());
  const auto first = medium.pass(11);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].sender, 7U);
  EXPECT_EQ(first[0].mark, 0U);
  EXPECT_FALSE(first[0].is_last);
  EXPECT_EQ(first[0].since, 10);
  EXPECT_EQ(medium.next(), 13);
  const auto rest = medium.pass(14);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_TRUE(rest[1].is_last);
  EXPECT_EQ(medium.next(), HUGE_VAL);
}

TEST(SharedMedium, AMessageOfNoBytesTakesNoTime) {
  SharedMedium medium(0.5);
  medium.start(0, 1, {0}, 0);
  medium.start(1, 0, {0}, 1);
  EXPECT_EQ(medium.next(), 1);
  EXPECT_EQ(medium.pass(1).at(0).sender, 1U);
  EXPECT_EQ(medium.next(), 2);
}

// Messages that start together end in order of length, each when the shared time suffices: the sum over the others of
// the smaller of their time and its own.
TEST(SharedMedium, EndsAreThoseOfEqualParts) {
  Dice dice(220);
  for (int i = 0; i < 200; ++i) {
    const double airtime = dice.chance(0.5) ? 1 : dice.real(0.1, 1);
    SharedMedium medium(airtime);
    std::vector<double> lengths;
    for (std::int64_t k = dice.integer(1, 6); k > 0; --k) {
      lengths.push_back(dice.real(0, 5));
      medium.start(lengths.size() - 1, lengths.back(), {0}, 3);
    }
    std::size_t over = 0;
    while (medium.next() < HUGE_VAL) {
      const double now = medium.next();
      for (const SharedMedium::Passed& passed : medium.pass(now)) {
        double given = 0;
        for (const double each : lengths) given += std::min(each, lengths[passed.sender]);
        ASSERT_NEAR(now, 3 + given / airtime, 1e-9 * (3 + given / airtime)) << i;
        ++over;
      }
    }
    ASSERT_EQ(over, lengths.size());
  }
}

}  // namespace
}  // namespace atl::plan::fleet
