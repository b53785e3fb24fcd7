// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/server_load.h"

#include "tests/plan/plan_cases.h"

namespace atl::plan {
namespace {

using test::refusal;

TEST(ServerLoad, AnIdleServerIsNotWaitedFor) {
  EXPECT_EQ(expected_wait({}), 0);
  EXPECT_EQ(expected_wait({.turns = 4, .computing = 0, .turn_seconds = 9}), 0);
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
}

TEST(ServerLoad, RefusesInvalidLoads) {
  EXPECT_NE(refusal([] { expected_wait({.turns = 0}); }).find("0 turns"), std::string::npos);
  EXPECT_NE(refusal([] { expected_wait({.computing = -1}); }).find("compute is -1"), std::string::npos);
  EXPECT_NE(refusal([] { expected_wait({.waited = -1}); }).find("waited is -1"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan
