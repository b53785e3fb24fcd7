// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/stream.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace atl::sim {
namespace {

using namespace std::chrono_literals;

TEST(Stream, WorkRunsInOrderWhoeverRunsIt) {
  Punctuality punctuality;
  Stream stream(punctuality);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    if (i % 3 == 0) {
      stream.run([&, i] {
        order.push_back(i);
        return 0ns;
      });
    } else {
      stream.enqueue([&, i](double) { order.push_back(i); }, 0ns);
    }
  }
  stream.synchronize();
  std::vector<int> expected(100);
  for (int i = 0; i < 100; ++i) expected[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(order, expected);
  EXPECT_TRUE(stream.is_idle());
}

// Proves M-1.
TEST(Stream, EventsAreReachedAtTheModelledTimeAndNeverEarlier) {
  Punctuality punctuality;
  Stream stream(punctuality);
  const auto begin = Clock::now();
  stream.run([] { return 300ms; });
  stream.run([] { return 300ms; });
  EXPECT_LT(Clock::now() - begin, 300ms) << "the caller runs ahead of the device";
  const Event event = stream.record();
  EXPECT_FALSE(event.is_reached());
  EXPECT_FALSE(stream.is_idle());
  event.wait();
  EXPECT_GE(Clock::now() - begin, 600ms);
  EXPECT_TRUE(event.is_reached());
  EXPECT_GE(event.when() - begin, 600ms);
  EXPECT_LT(event.when() - begin, 900ms);
}

TEST(Stream, AnEventThatWaitsForNothingIsReachedWhenItIsRecorded) {
  Punctuality punctuality;
  Stream stream(punctuality);
  for (int i = 0; i < 2; ++i) {
    const auto begin = Clock::now();
    const Event event = stream.record();
    EXPECT_TRUE(event.is_reached());
    EXPECT_GE(event.when(), begin) << "not when the stream was last used";
    EXPECT_LE(event.when(), Clock::now());
    stream.run([] { return 0ns; });
  }
}

TEST(Stream, IsIdleForWhoeverHasWaitedForIt) {
  Punctuality punctuality;
  Stream stream(punctuality);
  for (int i = 0; i < 2000; ++i) {
    stream.enqueue([](double) {}, {});
    stream.synchronize();
    ASSERT_TRUE(stream.is_idle()) << i;
  }
}

TEST(Stream, WorkThatSaysItselfWhenItEndsHoldsUpWhatFollows) {
  Punctuality punctuality;
  Stream stream(punctuality);
  Clock::time_point begun;
  stream.enqueue_open(
      [&](Clock::time_point begin) {
        begun = begin;
        return begin + 20ms;
      },
      true);
  stream.enqueue([](double) {}, 5ms);
  const Event event = stream.record();
  event.wait();
  EXPECT_GE(event.when(), begun + 25ms);
  EXPECT_GE(Clock::now(), event.when());
  EXPECT_EQ(punctuality.tasks, 2);
  stream.enqueue_open([](Clock::time_point begin) { return begin; }, false);
  stream.synchronize();
  EXPECT_EQ(punctuality.tasks, 2) << "it has no modelled time";
}

TEST(Stream, TimeOfQueuedWorkAddsUpExactly) {
  Punctuality punctuality;
  Stream stream(punctuality);
  const Event first = stream.record();
  stream.run([] { return 0ns; });
  const Event begin = stream.record();
  Event last;
  for (int i = 0; i < 10; ++i) {
    stream.enqueue([](double) {}, 50ms);
    last = stream.record();
  }
  last.wait();
  EXPECT_GE(last.when() - begin.when(), 500ms);
  EXPECT_LT(last.when() - begin.when(), 750ms) << "late wake-ups do not add up";
  EXPECT_TRUE(first.is_reached());
}

TEST(Stream, ACopyArrivesPieceByPieceAndNeverEarly) {
  Punctuality punctuality;
  Stream stream(punctuality);
  const auto begin = Clock::now();
  std::vector<std::pair<double, Clock::duration>> seen;
  stream.enqueue([&](double share) { seen.emplace_back(share, Clock::now() - begin); }, 10ms);
  stream.synchronize();
  ASSERT_GT(seen.size(), 10U);
  EXPECT_EQ(seen.back().first, 1.0);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(seen[i].first, seen[i - 1].first);
    }
    EXPECT_GE(seen[i].second, std::chrono::duration_cast<Clock::duration>(10ms * seen[i].first) - 1us);
  }
}

TEST(Stream, WorkBehindOtherWorkBeginsWithItsTimeAndNotAtItsEnd) {
  Punctuality punctuality;
  Stream stream(punctuality);
  std::promise<void> gate, ran;
  stream.enqueue_open(
      [&](Clock::time_point begin) {
        gate.get_future().wait();
        return std::max(begin, Clock::now());
      },
      false);
  stream.run_or_enqueue([&] { ran.set_value(); }, 1s);
  const Event end = stream.record();
  gate.set_value();
  ran.get_future().wait();
  EXPECT_FALSE(end.is_reached()) << "work that runs early leaves the host time to spare";
  end.wait();
}

TEST(Stream, WorkBehindNothingRunsAtOnceOnTheCaller) {
  Punctuality punctuality;
  Stream stream(punctuality);
  const auto begin = Clock::now();
  std::thread::id where;
  stream.run_or_enqueue([&] { where = std::this_thread::get_id(); }, 10ms);
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_GE(stream.record().when() - begin, 10ms) << "the device is still busy with it";
}

TEST(Stream, WorkBehindOtherWorkDoesNotHoldUpTheCaller) {
  Punctuality punctuality;
  Stream stream(punctuality);
  std::promise<void> gate;
  Clock::time_point opened;
  stream.enqueue_open(
      [&](Clock::time_point) {
        gate.get_future().wait();
        return opened = Clock::now() + 5ms;
      },
      false);
  const auto needed = std::make_shared<int>(7);
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (const int number : {1, 2}) {
    stream.run_or_enqueue(
        [&, number, needed] {
          order.push_back(number * *needed);
          threads.push_back(std::this_thread::get_id());
        },
        10ms);
  }
  EXPECT_FALSE(stream.is_idle());
  EXPECT_GT(needed.use_count(), 1) << "the stream holds what the work needs";
  const Event end = stream.record();
  EXPECT_FALSE(end.is_reached());
  gate.set_value();
  end.wait();
  EXPECT_EQ(order, (std::vector{7, 14})) << "each once, in order";
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_NE(threads[0], std::this_thread::get_id());
  EXPECT_EQ(threads[0], threads[1]);
  EXPECT_GE(end.when(), opened + 20ms);
  EXPECT_EQ(needed.use_count(), 1) << "and releases it before its end is reached";
}

TEST(Stream, WaitsForEventsOfOtherStreams) {
  Punctuality punctuality;
  Stream slow(punctuality);
  Stream fast(punctuality);
  std::atomic<bool> done{false};
  slow.enqueue([&](double share) { done = share == 1.0; }, 20ms);
  fast.wait_for(slow.record());
  bool seen = false;
  fast.run([&] {
    seen = done;
    return 0ns;
  });
  EXPECT_TRUE(seen);
  EXPECT_TRUE(Event().is_reached()) << "an event that was never recorded does not block";
}

// Proves M-4.
TEST(Stream, LateWorkIsCounted) {
  Punctuality punctuality;
  {
    Stream stream(punctuality);
    stream.run([] { return 5ms; });
    EXPECT_EQ(punctuality.late.load(), 0U);
    stream.synchronize();
    const auto begin = Clock::now();
    stream.run([&] {
      while (Clock::now() - begin < 5ms) {
      }
      return 1ms;
    });
  }
  EXPECT_EQ(punctuality.tasks.load(), 2U);
  EXPECT_EQ(punctuality.late.load(), 1U);
}

TEST(Stream, DestructionWaitsForWhatWasIssued) {
  Punctuality punctuality;
  std::atomic<int> done{0};
  {
    Stream stream(punctuality);
    for (int i = 0; i < 5; ++i) stream.enqueue([&](double share) { done += share == 1.0; }, 1ms);
  }
  EXPECT_EQ(done.load(), 5);
}

}  // namespace
}  // namespace atl::sim
