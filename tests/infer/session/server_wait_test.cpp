// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/server_wait.h"

#include <gtest/gtest.h>

#include <cmath>

#include "atoll/plan/operators/server_load.h"
#include "tests/infer/infer_cases.h"

namespace atl::infer {
namespace {

constexpr wire::Load kBusy{1, 1, 2, 200'000};

TEST(ServerWait, IsNothingWhereNothingIsKnown) {
  ServerWait wait;
  EXPECT_EQ(wait.expected(0), 0);
  wait.told(0, {});
  wait.waited(0, 5);
  EXPECT_EQ(wait.expected(0), 0) << "a server that reports no load";
}

TEST(ServerWait, IsThatOfThePlanner) {
  ServerWait wait;
  wait.told(0, kBusy);
  EXPECT_DOUBLE_EQ(wait.expected(0),
                   plan::expected_wait({.turns = 1, .computing = 1, .waiting = 2, .turn_seconds = 0.2}));
  EXPECT_DOUBLE_EQ(wait.expected(1), 0.5);
  wait.waited(1, 0.3);
  EXPECT_DOUBLE_EQ(wait.expected(1), 0.4) << "observed and reported waits count equally";
  wait.told(1, {1, 0, 0, 200'000});
  EXPECT_DOUBLE_EQ(wait.expected(1), 0.15);
}

TEST(ServerWait, LaterWaitsCountForMore) {
  ServerWait wait;
  wait.told(0, {1, 0, 0, 0});
  wait.waited(0, 1);
  wait.waited(4, 0);
  const double kept = std::exp(-2);
  EXPECT_DOUBLE_EQ(wait.expected(4), kept / (1 + kept) / 2);
}

TEST(ServerWait, WhatIsOldIsForgotten) {
  ServerWait wait;
  wait.told(0, kBusy);
  wait.waited(0, 100);
  EXPECT_GT(wait.expected(9), 50);
  wait.told(9, {4, 0, 0, 200'000});
  EXPECT_GT(wait.expected(9), 40);
  EXPECT_EQ(wait.expected(11), 0) << "there are no others, and the long wait was long ago";
  wait.told(30, kBusy);
  EXPECT_DOUBLE_EQ(wait.expected(31), 0.5);
  EXPECT_EQ(wait.expected(41), 0);
  wait.told(50, kBusy);
  wait.forget();
  EXPECT_EQ(wait.expected(50), 0);
}

// Every load that passes the checks of messages gives finite seconds.
TEST(ServerWait, IsFiniteForAnythingThatAServerMayTell) {
  test::Dice dice(83);
  for (int i = 0; i < 2000; ++i) {
    wire::Load load;
    load.turns = static_cast<std::uint32_t>(dice.integer(1, wire::kMaxTurns));
    load.computing = dice.chance(0.3) ? load.turns : dice.real(0, load.turns);
    load.waiting = dice.chance(0.3) ? wire::kMaxWaiting : dice.real(0, 10);
    load.turn_us = dice.chance(0.3) ? wire::kMaxMicroseconds : static_cast<std::uint64_t>(dice.integer(0, 1'000'000));
    ServerWait wait;
    wait.told(0, load);
    ASSERT_TRUE(std::isfinite(wait.expected(0)));
    ASSERT_GE(wait.expected(0), 0);
  }
}

}  // namespace
}  // namespace atl::infer
