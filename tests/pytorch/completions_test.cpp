// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/completions.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/pytorch/threads.h"

namespace atl::pytorch {
namespace {

TEST(Completions, TasksMayWaitForOneThatWasPostedBehindThem) {
  Gate gate, reached;
  Completions completions;
  for (int i = 0; i < 4; ++i) completions.post([&] { gate.wait(); });
  completions.post([&] { reached.open(); });
  EXPECT_TRUE(reached.opens());
  gate.open();
}

TEST(Completions, TasksThatAreLeftAtTheEndMayWaitForOneAnotherToo) {
  Gate gate, stopped;
  Completions completions;
  for (int i = 0; i < 4; ++i) completions.post([&] { gate.wait(); });
  completions.post([&] { gate.open(); });
  std::thread stopping([&] {
    completions.stop();
    stopped.open();
  });
  EXPECT_TRUE(stopped.opens());
  gate.open();
  stopping.join();
}

TEST(Completions, ATaskMayStopThem) {
  Gate posted, rest, stopped;
  auto completions = std::make_unique<Completions>();
  completions->post([&] {
    posted.wait();
    completions->stop();
    stopped.open();
  });
  completions->post([&] { rest.open(); });
  posted.open();
  EXPECT_TRUE(stopped.opens());
  EXPECT_TRUE(rest.opens());
}

TEST(Completions, AnUrgentTaskGoesFirst) {
  Gate started, gate;
  std::vector<int> order;
  Completions completions;
  completions.post([&] {
    started.open();
    gate.wait();
  });
  ASSERT_TRUE(started.opens());
  {
    const NoThreads no_others;  // so all tasks are left to the first thread
    for (const int number : {1, 2}) completions.post([&order, number] { order.push_back(number); });
    completions.post([&order] { order.push_back(0); }, /*urgent=*/true);
  }
  gate.open();
  completions.stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(Completions, ATaskRunsAtOnceWhereNoThreadCanBeStarted) {
  Completions completions;
  std::thread::id ran_on;
  {
    const NoThreads at_all;
    completions.post([&] { ran_on = std::this_thread::get_id(); });
  }
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  completions.post([&] { ran_on = std::this_thread::get_id(); });
  completions.stop();
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

}  // namespace
}  // namespace atl::pytorch
