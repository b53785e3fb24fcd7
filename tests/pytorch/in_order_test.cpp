// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/in_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <system_error>
#include <vector>

#include "tests/pytorch/threads.h"

namespace atl::pytorch {
namespace {

const InOrder::Line kLine{nullptr, 1, 0};

bool at_once() { return true; }

TEST(InOrder, ALineWaitsForItsFrontAndNoOtherLineDoes) {
  std::atomic<bool> is_ready = false;
  Gate last;
  std::vector<int> order;
  InOrder tasks("test");
  tasks.post(
      kLine, [&] { return is_ready.load(); }, [&] { order.push_back(1); });
  tasks.post(kLine, &at_once, [&] {
    order.push_back(2);
    last.open();
  });
  for (const InOrder::Line& other : {InOrder::Line{nullptr, 1, 7}, {nullptr, 2, 0}, {&last, 1, 0}}) {
    Gate ran;
    tasks.post(other, &at_once, [&] { ran.open(); });
    EXPECT_TRUE(ran.opens());
  }
  EXPECT_FALSE(tasks.is_idle(kLine));
  is_ready = true;
  EXPECT_TRUE(last.opens());
  tasks.stop();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_TRUE(tasks.is_idle(kLine));
}

TEST(InOrder, StoppingRunsWhatIsNotReady) {
  std::vector<int> order;
  InOrder tasks("test");
  for (const int number : {1, 2, 3}) {
    tasks.post(
        kLine, [] { return false; }, [&order, number] { order.push_back(number); });
  }
  tasks.stop();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  tasks.post(
      kLine, [] { return false; }, [&] { order.push_back(4); });
  EXPECT_EQ(order.size(), 4U);
}

TEST(InOrder, NothingIsPostedWhereNoThreadCanBeStarted) {
  std::vector<int> order;
  InOrder tasks("test");
  {
    const NoThreads at_all;
    EXPECT_THROW(tasks.post(kLine, &at_once, [&] { order.push_back(1); }), std::system_error);
  }
  EXPECT_TRUE(tasks.is_idle(kLine));
  tasks.post(kLine, &at_once, [&] { order.push_back(2); });
  tasks.stop();
  EXPECT_EQ(order, (std::vector<int>{2}));
}

}  // namespace
}  // namespace atl::pytorch
