// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/schedule.h"

#include <gtest/gtest.h>

#include "atoll/core/error.h"
#include "tests/collectives/schedule/cases.h"

namespace atl::collectives {
namespace {

using test::Order;

// Frames of 64 float32 in windows of a little over one or four of them: a message of a few hundred elements has several
// chunks, and lanes run into one another's credit.
constexpr ScheduleLimits kTight{256, 320, 0, 1};
constexpr ScheduleLimits kTiny{256, 1024, 64, 1};
constexpr ScheduleLimits kStars{256, 1024, 4096, 1};

void sweep_layout(const std::vector<int>& sizes, Order order, bool flat, const std::vector<std::uint64_t>& counts,
                  int root_step, int root_first) {
  const Topology topology = Topology::from_labels(test::make_labels(sizes, order), {}, flat);
  std::uint64_t number = 0;
  for (const Operation operation : test::kOperations) {
    for (const std::uint64_t count : counts) {
      const ScheduleLimits& limits = ++number % 3 == 0 ? kTight : number % 3 == 1 ? kTiny : kStars;
      const bool rooted = has_root(operation);
      for (int root = rooted ? root_first % topology.size : 0; root < topology.size;
           root += rooted ? root_step : topology.size) {
        const auto shapes = test::make_shapes(topology, operation, DataType::kFloat32, count, root, number % 2 == 0);
        ASSERT_EQ(test::check_case(topology, shapes, limits), "");
      }
    }
  }
}

// Calls visit(sizes) for all lists of 1 to `most_islands` island sizes from 1 to 5.
template <typename Visit>
void for_each_layout(std::size_t most_islands, std::vector<int>& sizes, const Visit& visit) {
  if (!sizes.empty()) visit(sizes);
  if (sizes.size() == most_islands) return;
  for (int size = 1; size <= 5; ++size) {
    sizes.push_back(size);
    for_each_layout(most_islands, sizes, visit);
    sizes.pop_back();
  }
}

TEST(ScheduleMatrix, SmallLayoutsAllSizesAllRoots) {
  const std::vector<std::uint64_t> counts{0, 1, 7, 63, 64, 65, 127, 331, 1000};
  for (const auto& sizes : std::vector<std::vector<int>>{
           {1}, {2}, {3}, {5}, {1, 1}, {2, 1}, {1, 3}, {2, 2}, {3, 2}, {1, 1, 1}, {2, 1, 2}, {1, 2, 1, 1}}) {
    for (const Order order : {Order::kBlocks, Order::kTurns, Order::kMixed}) {
      for (const bool flat : {false, true}) sweep_layout(sizes, order, flat, counts, 1, 0);
    }
  }
}

// Proves C-1.
TEST(ScheduleMatrix, AllLayoutsOfUpToThreeIslands) {
  std::vector<int> sizes;
  int number = 0;
  for_each_layout(3, sizes, [&](const std::vector<int>& layout) {
    if (HasFatalFailure()) return;
    const std::uint64_t sampled =
        std::vector<std::uint64_t>{0, 1, 64, 331, 65, 700}[static_cast<std::size_t>(++number) % 6];
    for (const bool flat : {false, true})
      sweep_layout(layout, static_cast<Order>(number % 3), flat, {sampled, 63, 200}, 4, number);
  });
  EXPECT_EQ(number, 155);
}

TEST(ScheduleMatrix, AllLayoutsOfFourIslands) {
  std::vector<int> sizes;
  int number = 0;
  for_each_layout(4, sizes, [&](const std::vector<int>& layout) {
    if (layout.size() < 4 || HasFatalFailure()) return;
    ++number;
    const std::uint64_t sampled =
        std::vector<std::uint64_t>{0, 1, 64, 331, 65, 129, 700}[static_cast<std::size_t>(number) % 7];
    sweep_layout(layout, static_cast<Order>(number / 2 % 3), number % 5 == 0, {sampled}, 20, number);
  });
  EXPECT_EQ(number, 625);
}

TEST(ScheduleMatrix, EveryElementSize) {
  const Topology topology = Topology::from_labels({"a", "b", "a", "a", "b"});
  for (const DataType dtype : {DataType::kUInt8, DataType::kFloat16, DataType::kFloat64, DataType::kComplex128}) {
    for (const Operation operation : test::kOperations) {
      for (const std::uint64_t payload : {16, 48, 100, 640}) {
        const ScheduleLimits limits{payload, 4 * (payload + 128), 32, 1};
        ASSERT_EQ(test::check_case(topology, test::make_shapes(topology, operation, dtype, 211, 3, true), limits), "");
      }
    }
  }
}

TEST(ScheduleMatrix, StatedUplinks) {
  const std::vector<std::string> labels{"a", "b", "c", "a", "c", "c", "d"};
  for (const auto& uplinks :
       std::vector<std::vector<double>>{{1, 1, 1, 1, 1, 1, 1}, {10, 1, 10, 0, 0, 0, 10}, {1, 100, 1, 1, 1, 1, 100}}) {
    const Topology topology = Topology::from_labels(labels, uplinks);
    for (const std::uint64_t count : {0, 300, 5000}) {
      ASSERT_EQ(test::check_case(
                    topology, test::make_shapes(topology, Operation::kAllReduce, DataType::kFloat32, count, -1, false),
                    kTiny),
                "");
    }
  }
}

TEST(ScheduleMatrix, UsualLimitsAndSizes) {
  for (const auto& sizes : std::vector<std::vector<int>>{{2}, {4}, {2, 2}, {3, 1}, {2, 1, 1}}) {
    const Topology topology = Topology::from_labels(test::make_labels(sizes, Order::kBlocks));
    for (const Operation operation : test::kOperations) {
      for (const std::uint64_t count : {4, 1024, 1025, 16384, 1 << 20}) {
        ASSERT_EQ(
            test::check_case(topology, test::make_shapes(topology, operation, DataType::kFloat32, count, 1, false), {}),
            "");
      }
    }
  }
}

// Checks libraries inside some islands: `which` has a bit for each island. Every operation runs twice: with the
// libraries and without.
void sweep_libraries(const std::vector<int>& sizes, Order order, unsigned which, std::uint64_t count) {
  Topology topology = Topology::from_labels(test::make_labels(sizes, order));
  for (std::size_t island = 0; island < sizes.size(); ++island)
    topology.libraries[island] = which >> island & 1 ? "library" : "";
  if (!topology.has_leads()) return;
  std::uint64_t number = count;
  for (const Operation operation : {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
                                    Operation::kBroadcast, Operation::kReduce, Operation::kBarrier}) {
    const ScheduleLimits& limits = ++number % 3 == 0 ? kTight : number % 3 == 1 ? kTiny : kStars;
    for (int root = 0; root < (has_root(operation) ? topology.size : 1); ++root) {
      const auto shapes = test::make_shapes(topology, operation, DataType::kFloat32, count, root, number % 2 == 0);
      ASSERT_EQ(test::check_case(topology, shapes, limits), "");
      ASSERT_EQ(test::check_case(topology, test::with_libraries(topology, shapes), limits), "");
    }
  }
}

TEST(ScheduleMatrix, LibrariesInsideIslands) {
  std::vector<int> sizes;
  int number = 0;
  for_each_layout(3, sizes, [&](const std::vector<int>& layout) {
    if (layout.size() < 2 || HasFatalFailure()) return;
    for (unsigned which = 1; which < 1u << layout.size(); ++which) {
      ++number;
      const std::uint64_t sampled =
          std::vector<std::uint64_t>{0, 1, 64, 331, 65, 700, 17}[static_cast<std::size_t>(number) % 7];
      sweep_libraries(layout, static_cast<Order>(number % 3), which, sampled);
    }
  });
  EXPECT_EQ(number, 25 * 3 + 125 * 7);
}

TEST(ScheduleMatrix, LibrariesInDeepTrees) {
  std::vector<int> many(18, 2);
  many[3] = 1;
  for (const auto& layout : std::vector<std::vector<int>>{{20, 3}, {17, 1, 18}, many}) {
    for (const Order order : {Order::kBlocks, Order::kMixed}) {
      for (const std::uint64_t count : {3, 700}) sweep_libraries(layout, order, 0x2b65d, count);
    }
  }
}

// Deep trees: islands of more than 16 ranks, and more than 16 islands.
TEST(ScheduleMatrix, DeepTrees) {
  const std::vector<std::vector<int>> layouts{{17},
                                              {40},
                                              {20, 3},
                                              {1, 18, 1},
                                              std::vector<int>(17, 1),
                                              {18, 1, 1, 2, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
  for (const auto& sizes : layouts) {
    for (const Order order : {Order::kBlocks, Order::kMixed}) {
      const Topology topology = Topology::from_labels(test::make_labels(sizes, order));
      for (const Operation operation : test::kOperations) {
        for (const std::uint64_t count : {1, 900}) {
          if (operation == Operation::kAllToAll && count > 1) continue;
          const std::uint64_t per_message =
              operation == Operation::kReduceScatter || operation == Operation::kAllGather ? count / 9 + 1 : count;
          const auto shapes =
              test::make_shapes(topology, operation, DataType::kFloat32, per_message, topology.size - 2, false);
          ASSERT_EQ(test::check_case(topology, shapes, kTiny), "");
        }
      }
    }
  }
}

TEST(ScheduleMatrix, FiveHundredRanksMeetFewPeers) {
  const Topology topology = Topology::from_labels(std::vector<std::string>(512, "all"));
  const auto small = test::make_shapes(topology, Operation::kAllReduce, DataType::kFloat32, 3, -1, false);
  const auto schedules = test::build_all(topology, small);
  EXPECT_EQ(check_schedules(topology, small, schedules), "");
  const auto large = test::make_shapes(topology, Operation::kAllReduce, DataType::kFloat32, 1 << 20, -1, false);
  for (int rank = 0; rank < topology.size; rank += 37) {
    EXPECT_LE(schedules[static_cast<std::size_t>(rank)].peers.size(), 50u);
    EXPECT_LE(build_schedule(topology, large[0], rank).peers.size(), 50u);
  }
}

// Proves C-2.
TEST(Schedule, IsTheSameEveryTime) {
  const Topology topology = Topology::from_labels({"a", "b", "a"});
  for (const Operation operation : test::kOperations) {
    const auto shapes = test::make_shapes(topology, operation, DataType::kFloat32, 70000, 2, true);
    for (int rank = 0; rank < 3; ++rank) {
      const auto& shape = shapes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(print_schedule(build_schedule(topology, shape, rank), 1000),
                print_schedule(build_schedule(topology, shape, rank), 1000));
    }
  }
}

// Ranks that disagree about sizes must find out from a frame, even if one of them has nothing to send.
TEST(Schedule, EveryConnectedPairExchangesAFrame) {
  const Topology topology = Topology::from_labels({"a", "a", "a"});
  for (const Operation operation : test::kOperations) {
    const auto shapes = test::make_shapes(topology, operation, DataType::kFloat32, 0, 1, false);
    for (int rank = 0; rank < 3; ++rank) {
      const Schedule schedule = build_schedule(topology, shapes[static_cast<std::size_t>(rank)], rank);
      const bool only_root =
          has_root(operation) || operation == Operation::kAllReduce || operation == Operation::kBarrier;
      const int hub = has_root(operation) ? 1 : 0;
      const std::size_t expected = only_root && rank != hub ? 1 : 2;
      EXPECT_EQ(schedule.peers.size(), expected) << to_string(operation) << " on rank " << rank;
    }
  }
}

TEST(Schedule, RefusesShapesThatDoNotFit) {
  const Topology topology = Topology::from_labels({"a", "b"});
  const auto refused = [&](const Shape& shape, int rank, const ScheduleLimits& limits = {}) {
    try {
      build_schedule(topology, shape, rank, limits);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInvalidArgument;
    }
    return false;
  };
  const Shape good{Operation::kAllReduce, DataType::kFloat64, -1, {4}, {}};
  EXPECT_FALSE(refused(good, 0));
  EXPECT_TRUE(refused(good, 2));
  EXPECT_TRUE(refused(good, -1));
  EXPECT_TRUE(refused(good, 0, {4, 1024, 0}));
  EXPECT_TRUE(refused(good, 0, {1024, 1024, 0}));
  EXPECT_TRUE(refused({Operation::kAllReduce, DataType::kFloat64, -1, {4, 4}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kAllReduce, DataType::kFloat64, -1, {std::uint64_t{1} << 61}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kAllGather, DataType::kFloat64, -1, {4}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kBroadcast, DataType::kFloat64, -1, {4}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kBroadcast, DataType::kFloat64, 2, {4}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kAllToAll, DataType::kFloat64, -1, {4, 4}, {}}, 0));
  EXPECT_TRUE(refused({Operation::kAllToAll, DataType::kFloat64, -1, {4, 4}, {3, 4}}, 0));
  EXPECT_TRUE(refused({Operation::kSend, DataType::kFloat64, -1, {4}, {}}, 0));
}

TEST(Schedule, PrintsStepsByLane) {
  const Topology topology = Topology::from_labels({"a", "b"});
  const Schedule schedule = build_schedule(topology, {Operation::kAllReduce, DataType::kFloat32, -1, {3}, {}}, 1);
  EXPECT_EQ(print_schedule(schedule),
            "exchange: sends 0 bytes inside the island and 12 over the bridge in 1 frames; 2 steps in 1 lanes, 1 "
            "peers, 0 bytes of scratch memory\n"
            "lane 0 (bridge), 2 steps\n"
            "  send 12 bytes at 0 to rank 0 up from input 0 + 0\n"
            "  fold raw final 12 bytes at 0 of [rank 0, input 0 + 0] into output 0 + 0\n");
}

}  // namespace
}  // namespace atl::collectives
