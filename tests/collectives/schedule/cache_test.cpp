// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

Shape shape_of(std::uint64_t count) { return {Operation::kAllReduce, DataType::kFloat32, -1, {count}, {}}; }

Topology three() { return Topology::from_labels({"a", "b", "a"}); }

ScheduleCache::Builder builder(int rank) {
  return [rank](const Shape& shape) { return build_schedule(three(), shape, rank); };
}

TEST(ScheduleCache, BuildsOnceAndKeeps) {
  ScheduleCache cache(builder(1));
  const auto first = cache.get(shape_of(100));
  EXPECT_EQ(cache.get(shape_of(100)), first);
  EXPECT_NE(cache.get(shape_of(101)), first);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(print_schedule(*first, 100), print_schedule(build_schedule(three(), shape_of(100), 1), 100));
}

TEST(ScheduleCache, TellsShapesApart) {
  ScheduleCache cache(builder(0));
  std::vector<Shape> shapes{shape_of(3)};
  shapes.push_back({Operation::kBroadcast, DataType::kFloat32, 0, {3}, {}});
  shapes.push_back({Operation::kBroadcast, DataType::kFloat32, 1, {3}, {}});
  shapes.push_back({Operation::kAllReduce, DataType::kFloat64, -1, {3}, {}});
  shapes.push_back({Operation::kAllToAll, DataType::kFloat32, -1, {1, 2, 3}, {1, 3, 2}});
  shapes.push_back({Operation::kAllToAll, DataType::kFloat32, -1, {1, 3, 2}, {1, 2, 3}});
  for (const Shape& shape : shapes) {
    EXPECT_EQ(print_schedule(*cache.get(shape), 100), print_schedule(build_schedule(three(), shape, 0), 100));
  }
  EXPECT_EQ(cache.size(), shapes.size());
}

TEST(ScheduleCache, ForgetsTheLeastRecentlyUsed) {
  ScheduleCache cache(builder(0), 2);
  const auto one = cache.get(shape_of(1));
  const auto two = cache.get(shape_of(2));
  cache.get(shape_of(1));
  cache.get(shape_of(3));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.get(shape_of(1)), one);
  EXPECT_NE(cache.get(shape_of(2)), two);
  EXPECT_EQ(one->algorithm, "exchange");  // what is held stays valid
}

TEST(ScheduleCache, BoundsSteps) {
  const std::size_t steps = build_schedule(three(), shape_of(1 << 20), 0).steps.size();
  ScheduleCache cache(builder(0), 100, steps * 5 / 2);
  for (std::uint64_t i = 0; i < 5; ++i) cache.get(shape_of((1 << 20) + i));
  EXPECT_EQ(cache.size(), 2u);
  ScheduleCache tiny(builder(0), 100, 1);
  EXPECT_EQ(tiny.get(shape_of(1 << 20)), tiny.get(shape_of(1 << 20)));
  EXPECT_EQ(tiny.size(), 1u);
}

TEST(ScheduleCache, KeepsNothingOfARefusedShape) {
  ScheduleCache cache(builder(0));
  EXPECT_THROW(cache.get({Operation::kBroadcast, DataType::kFloat32, 7, {3}, {}}), Error);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(ScheduleCache, ServesThreads) {
  ScheduleCache cache(builder(2), 4);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t count = (i * 7 + thread) % 9 * 5000;
        const auto schedule = cache.get(shape_of(count));
        if (schedule->steps.empty() || schedule->steps[0].count != count) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(cache.size(), 4u);
}

}  // namespace
}  // namespace atl::collectives
