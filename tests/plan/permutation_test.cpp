// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "atoll/plan/hash.h"
#include "plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;
using Words = std::array<std::uint32_t, 4>;
using Values = std::vector<std::int64_t>;

// The vectors that the authors of Philox publish with their library.
TEST(Random, PhiloxGivesThePublishedNumbers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, BoundedNumbersAreUniform) {
  Random random(5, 0, Purpose::kDraw);
  for (const std::uint64_t bound :
       {std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{3} << 30, std::uint64_t{3} << 62}) {
    std::array<int, 3> thirds{};
    for (int i = 0; i < 30000; ++i) {
      const std::uint64_t value = random.below(bound);
      ASSERT_LT(value, bound);
      ++thirds[static_cast<std::size_t>(static_cast<double>(value) / static_cast<double>(bound) * 3)];
    }
    if (bound == 1) continue;
    for (const int count : thirds) EXPECT_NEAR(count, 10000, 500) << bound;
  }
  for (int i = 0; i < 1000; ++i) {
    const double unit = random.unit();
    ASSERT_TRUE(unit >= 0 && unit < 1);
  }
}

TEST(Permutation, HoldsEachNumberOnce) {
  for (const std::int64_t size : {0, 1, 2, 3, 64, 65, 66, 1000}) {
    Values values = permutation(size, 1, 2);
    std::sort(values.begin(), values.end());
    Values expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), std::int64_t{0});
    EXPECT_EQ(values, expected);
  }
}

// Promised to users: a change here changes the order of samples of their runs.
// Proves P-1.
TEST(Permutation, IsTheSameEverywhere) {
  EXPECT_EQ(permutation(10, 0, 0), (Values{7, 0, 2, 4, 8, 9, 6, 3, 1, 5}));
  EXPECT_EQ(permutation(10, 42, 7), (Values{7, 9, 8, 1, 0, 4, 3, 5, 2, 6}));
  EXPECT_EQ(hash_of(permutation(100000, 1, 0)), 9579450287067303561U);
  EXPECT_EQ(draw(std::vector<double>{1, 0, 3}, 12, 3, 4), (Values{2, 0, 2, 0, 0, 0, 2, 2, 2, 2, 2, 2}));
}

TEST(Permutation, DiffersByEverySeedAndEpoch) {
  std::map<std::uint64_t, int> hashes;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const std::int64_t epoch : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
      ++hashes[hash_of(permutation(1000, seed, epoch))];
      ++hashes[hash_of(permutation(1000, seed << 32 | 1 << 20, epoch))];
    }
  }
  EXPECT_EQ(hashes.size(), 48U);
}

TEST(Permutation, AllOrdersAreEquallyLikely) {
  std::map<Values, int> counts;
  for (int i = 0; i < 24000; ++i) ++counts[permutation(4, static_cast<std::uint64_t>(i), 0)];
  EXPECT_EQ(counts.size(), 24U);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 160);
}

TEST(Permutation, DrawsFollowTheWeights) {
  const Values drawn = draw(std::vector<double>{0, 1, 0, 3, 0}, 40000, 9, 0);
  ASSERT_EQ(drawn.size(), 40000U);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 1) + std::count(drawn.begin(), drawn.end(), 3), 40000);
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 1)), 10000, 500);
}

TEST(Permutation, RefusesWhatCannotBeDrawn) {
  EXPECT_NE(refusal([] { permutation(-1, 0, 0); }).find("-1 values"), std::string::npos);
  EXPECT_NE(refusal([] { permutation(1, 0, -3); }).find("epoch is -3"), std::string::npos);
  EXPECT_NE(refusal([] { draw(std::vector<double>{0, 0}, 1, 0, 0); }).find("all weights are 0"), std::string::npos);
  EXPECT_NE(refusal([] { draw(std::vector<double>{1, -1}, 1, 0, 0); }).find("weight 1 is -1"), std::string::npos);
  EXPECT_NE(refusal([] { draw(std::vector<double>{}, 1, 0, 0); }).find("all weights are 0"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
