// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/profiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "tests/infer/infer_cases.h"

namespace atl::infer {
namespace {

ModelHash hash_of(std::int64_t number) {
  ModelHash hash{};
  hash[0] = static_cast<std::byte>(number);
  hash[31] = static_cast<std::byte>(number >> 8);
  return hash;
}

wire::Ready ready_of(std::int64_t number) {
  wire::Ready ready;
  ready.model = 1;
  ready.whole = {static_cast<double>(number)};
  return ready;
}

TEST(Profiles, KeepsTheFirstOfAModel) {
  Profiles profiles(4);
  EXPECT_EQ(profiles.find(hash_of(1)), nullptr);
  EXPECT_EQ(profiles.keep(hash_of(1), ready_of(7))->whole.front(), 7);
  EXPECT_EQ(profiles.keep(hash_of(1), ready_of(8))->whole.front(), 7);
  ASSERT_NE(profiles.find(hash_of(1)), nullptr);
  EXPECT_EQ(profiles.find(hash_of(1))->whole.front(), 7);
}

TEST(Profiles, WhatIsForgottenStaysWithWhoHasIt) {
  Profiles profiles(1);
  const auto first = profiles.keep(hash_of(1), ready_of(1));
  profiles.keep(hash_of(2), ready_of(2));
  EXPECT_EQ(profiles.find(hash_of(1)), nullptr);
  EXPECT_EQ(first->whole.front(), 1);
}

// Compares with a queue that is searched.
TEST(Profiles, TheLastUsedOnesStay) {
  test::Dice dice(61);
  constexpr std::size_t kMax = 5;
  Profiles profiles(kMax);
  std::deque<std::int64_t> used;  // the last one at its head
  for (int step = 0; step < 5000; ++step) {
    const std::int64_t number = dice.integer(0, 11);
    const auto place = std::find(used.begin(), used.end(), number);
    const bool is_known = place != used.end();
    if (dice.chance(0.5)) {
      ASSERT_EQ(profiles.find(hash_of(number)) != nullptr, is_known) << "step " << step;
      if (!is_known) continue;
    } else {
      ASSERT_EQ(profiles.keep(hash_of(number), ready_of(number))->whole.front(), static_cast<double>(number));
    }
    if (is_known) used.erase(place);
    used.push_front(number);
    if (used.size() > kMax) used.pop_back();
    ASSERT_EQ(profiles.size(), used.size());
  }
  EXPECT_EQ(profiles.size(), kMax);
}

}  // namespace
}  // namespace atl::infer
