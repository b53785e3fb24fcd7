// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/server_load.h"

#include <vector>

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;

TEST(ServerLoad, AnIdleServerIsNotWaitedFor) {
  EXPECT_EQ(expected_wait({}), 0);
  EXPECT_EQ(expected_wait({.turns = 4, .computing = 0, .turn_seconds = 9}), 0);
  EXPECT_EQ(expected_stretch({}), 1);
}

TEST(ServerLoad, WaitsForWhatIsLeftAndWhatComesBefore) {
  // One turn, always taken: half of it is left. Two requests wait before.
  EXPECT_DOUBLE_EQ(expected_wait({.turns = 1, .computing = 1, .waiting = 2, .turn_seconds = 0.2}), 0.1 + 0.4);
  EXPECT_DOUBLE_EQ(expected_wait({.turns = 1, .computing = 0.5, .turn_seconds = 0.2}), 0.05);
  // The first of three turns ends after a quarter; waiting robots share all three.
  EXPECT_DOUBLE_EQ(expected_wait({.turns = 3, .computing = 3, .waiting = 3, .turn_seconds = 0.4}), 0.1 + 0.4);
  EXPECT_LT(expected_wait({.turns = 3, .computing = 2, .turn_seconds = 0.4}), 0.04);
  // Measured waits count as much as reported ones.
  EXPECT_DOUBLE_EQ(expected_wait({.turns = 1, .computing = 1, .turn_seconds = 0.2, .waited = 0.5}), 0.3);
  EXPECT_DOUBLE_EQ(expected_stretch({.messages = 1.5}), 2.5);
}

TEST(ServerLoad, RefusesInvalidLoads) {
  EXPECT_NE(refusal([] { expected_wait({.turns = 0}); }).find("0 turns"), std::string::npos);
  EXPECT_NE(refusal([] { expected_wait({.computing = -1}); }).find("compute is -1"), std::string::npos);
  EXPECT_NE(refusal([] { expected_wait({.waited = -1}); }).find("waited is -1"), std::string::npos);
  EXPECT_NE(refusal([] { expected_stretch({.messages = -1}); }).find("radio is -1"), std::string::npos);
  EXPECT_NE(refusal([] { PlanChooser(0, 1); }).find("gain of a change is 1"), std::string::npos);
}

TEST(PlanChooser, ChangesForAGainOnly) {
  PlanChooser chooser(1, 0.1);
  const std::vector<double> seconds{1, 0.95, 2};
  EXPECT_EQ(chooser.choose(0, seconds, 0), 0U);
  EXPECT_EQ(chooser.choose(1, seconds, 0), 1U);
  EXPECT_EQ(chooser.choose(2, seconds, 0), 1U);
}

TEST(PlanChooser, OneOfAllMovesAtATimeInTheMean) {
  const std::vector<double> seconds{1, 0.5};
  constexpr int kSessions = 8;
  constexpr int kRounds = 500;
  int moves = 0;
  std::vector<PlanChooser> choosers;
  for (int i = 0; i < kSessions; ++i) choosers.emplace_back(static_cast<std::uint64_t>(i));
  for (int round = 0; round < kRounds; ++round) {
    for (PlanChooser& chooser : choosers) moves += chooser.choose(0, seconds, kSessions - 1) == 1 ? 1 : 0;
  }
  EXPECT_NEAR(moves, kRounds, 0.15 * kRounds);
}

}  // namespace
}  // namespace atl::plan
