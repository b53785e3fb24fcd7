// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/turn_gate.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <vector>

#include "tests/infer/infer_cases.h"

namespace atl::infer {
namespace {

using test::failure;

TEST(TurnGate, OneIsInsideAtATime) {
  TurnGate gate;
  std::atomic<int> inside = 0;
  std::atomic<int> turns = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const TurnGate::Turn turn(gate);
        EXPECT_EQ(++inside, 1);
        std::this_thread::yield();
        --inside;
        ++turns;
      }
    });
  }
  for (std::thread& each : callers) each.join();
  EXPECT_EQ(turns, 1600);
  EXPECT_FALSE(TurnGate::Turn(gate).has_waited());
}

TEST(TurnGate, ClosingWaitsForWhoIsInside) {
  TurnGate gate;
  std::latch entered(1);
  std::atomic<bool> is_over = false;
  std::thread holder([&] {
    const TurnGate::Turn turn(gate);
    entered.count_down();
    while (!gate.is_closed()) std::this_thread::yield();
    is_over = true;
  });
  entered.wait();
  std::vector<std::thread> others;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      try {
        const TurnGate::Turn turn(gate);
      } catch (const Error& error) {  // by whether it came before the end
        const bool is_known = error.kind() == ErrorKind::kAborted || error.kind() == ErrorKind::kInvalidArgument;
        refused += is_known ? 1 : 0;
      }
    });
  }
  gate.close();
  EXPECT_TRUE(is_over);
  holder.join();
  for (std::thread& each : others) each.join();
  EXPECT_EQ(refused, 4);
  gate.close();
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { const TurnGate::Turn turn(gate); }).find("closed"),
            std::string::npos);
}

}  // namespace
}  // namespace atl::infer
