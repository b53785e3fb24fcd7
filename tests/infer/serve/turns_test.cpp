// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/turns.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace atl::infer {
namespace {

using namespace std::chrono_literals;

struct Queue {
  std::vector<int> key = std::vector<int>(8);
  std::vector<int> given{};
  Clock::time_point now{};
  Turns turns;

  explicit Queue(std::size_t at_once)
      : turns(at_once, [this](Turns::Key given_to) {
          given.push_back(static_cast<int>(static_cast<const int*>(given_to) - key.data()));
        }) {}
  void want(int index) { turns.want(&key[static_cast<std::size_t>(index)], now); }
  void over(int index) { turns.over(&key[static_cast<std::size_t>(index)], now); }
  std::size_t before(int index) const { return turns.before(&key[static_cast<std::size_t>(index)]); }
};

TEST(Turns, AreGivenInTheOrderAsked) {
  Queue queue(1);
  for (const int index : {3, 1, 2}) queue.want(index);
  EXPECT_EQ(queue.given, std::vector<int>{3});
  EXPECT_EQ(queue.before(3), 0u);
  EXPECT_EQ(queue.before(1), 1u);
  EXPECT_EQ(queue.before(2), 2u);
  queue.over(3);
  queue.over(1);
  EXPECT_EQ(queue.given, (std::vector<int>{3, 1, 2}));
}

TEST(Turns, AskingTwiceChangesNothing) {
  Queue queue(1);
  for (const int index : {0, 0, 1, 1}) queue.want(index);
  queue.over(0);
  queue.over(1);
  EXPECT_EQ(queue.given, (std::vector<int>{0, 1}));
  EXPECT_EQ(queue.turns.running(), 0u);
}

TEST(Turns, WhoLeavesTheQueueIsPassedOver) {
  Queue queue(1);
  for (const int index : {0, 1, 2}) queue.want(index);
  queue.over(1);
  queue.over(0);
  EXPECT_EQ(queue.given, (std::vector<int>{0, 2}));
}

TEST(Turns, OverrunsAreFound) {
  Queue queue(2);
  queue.want(0);
  queue.now += 60ms;
  queue.want(1);
  queue.want(2);  // waits, which takes as long as it takes
  queue.now += 60ms;
  ASSERT_EQ(queue.turns.longer_than(100ms, queue.now).size(), 1u);
  EXPECT_EQ(queue.turns.longer_than(100ms, queue.now).front(), &queue.key[0]);
}

TEST(Turns, NeverMoreThanAllowedAndNobodyStarves) {
  std::mt19937 dice(5);
  for (std::size_t at_once = 1; at_once <= 3; ++at_once) {
    Queue queue(at_once);
    for (int step = 0; step < 2000; ++step) {
      const int index = static_cast<int>(dice() % 8);
      if (dice() % 2 == 0) {
        queue.want(index);
      } else {
        queue.over(index);
      }
      ASSERT_LE(queue.turns.running(), at_once);
      ASSERT_TRUE(queue.turns.waiting() == 0 || queue.turns.running() == at_once);
    }
    for (int index = 0; index < 8; ++index) queue.over(index);
    EXPECT_EQ(queue.turns.running() + queue.turns.waiting(), 0u);
  }
}

}  // namespace
}  // namespace atl::infer
