// SPDX-License-Identifier: Apache-2.0
// What schedules cost: bytes, balance, steps. The figures are those of docs/algorithms.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/collectives/schedule/cases.h"

namespace atl::collectives {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunk = std::uint64_t{128} << 10;

Shape float_shape(Operation operation, std::uint64_t bytes) {
  return {operation, DataType::kFloat32, -1, {bytes / 4}, {}};
}

std::vector<Schedule> all_reduce(const Topology& topology, std::uint64_t bytes) {
  return test::build_all(
      topology, std::vector<Shape>(static_cast<std::size_t>(topology.size), float_shape(Operation::kAllReduce, bytes)));
}

std::uint64_t bridge_bytes(const Topology& topology, const std::vector<Schedule>& schedules, std::size_t island) {
  std::uint64_t sum = 0;
  for (const int rank : topology.islands[island]) sum += schedules[static_cast<std::size_t>(rank)].sent_bytes_bridge;
  return sum;
}

TEST(ScheduleCost, TwoIslandsSendTheMessageOnceEachWay) {
  for (const auto& sizes : std::vector<std::vector<int>>{{1, 1}, {2, 2}, {3, 1}, {2, 5}, {20, 3}}) {
    const Topology topology = Topology::from_labels(test::make_labels(sizes, test::Order::kTurns));
    for (const std::uint64_t bytes : {8 * kMiB + 4, 64 * kMiB}) {
      const auto schedules = all_reduce(topology, bytes);
      for (const std::size_t island : {0, 1}) EXPECT_EQ(bridge_bytes(topology, schedules, island), bytes);
    }
  }
}

TEST(ScheduleCost, EachMessageCrossesTheBridgeOncePerIsland) {
  const Topology topology = Topology::from_labels({"a", "b", "a", "c", "b", "a"});
  const std::uint64_t bytes = 3 * kMiB;
  const auto sent = [&](Operation operation) {
    const auto schedules =
        test::build_all(topology, test::make_shapes(topology, operation, DataType::kFloat32, bytes / 4, 1, false));
    std::vector<std::uint64_t> by_island;
    for (std::size_t island = 0; island < 3; ++island) by_island.push_back(bridge_bytes(topology, schedules, island));
    return by_island;
  };
  EXPECT_EQ(sent(Operation::kAllGather), (std::vector<std::uint64_t>{3 * 2 * bytes, 2 * 2 * bytes, 1 * 2 * bytes}));
  EXPECT_EQ(sent(Operation::kReduceScatter), (std::vector<std::uint64_t>{3 * bytes, 4 * bytes, 5 * bytes}));
  EXPECT_EQ(sent(Operation::kBroadcast), (std::vector<std::uint64_t>{0, 2 * bytes, 0}));
  EXPECT_EQ(sent(Operation::kReduce), (std::vector<std::uint64_t>{bytes, 0, bytes}));
}

TEST(ScheduleCost, RanksOfAnIslandShareTheBridge) {
  for (const auto& sizes : std::vector<std::vector<int>>{{2, 2}, {3, 1}, {2, 5}, {4, 3}}) {
    const Topology topology = Topology::from_labels(test::make_labels(sizes, test::Order::kBlocks));
    const std::uint64_t bytes = 64 * kMiB;
    const auto schedules = all_reduce(topology, bytes);
    for (const auto& island : topology.islands) {
      for (const int rank : island) {
        const double share = static_cast<double>(bytes) / static_cast<double>(island.size());
        EXPECT_NEAR(static_cast<double>(schedules[static_cast<std::size_t>(rank)].sent_bytes_bridge), share,
                    0.01 * share + 2 * kChunk);
      }
    }
  }
}

TEST(ScheduleCost, BridgeIsPipelined) {
  const Topology topology = Topology::from_labels({"a", "b"});
  const Schedule schedule = build_schedule(topology, float_shape(Operation::kAllReduce, 64 * kMiB), 0);
  const auto frames = std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                    [](const Step& step) { return step.kind == StepKind::kSend; });
  EXPECT_GE(frames, 64);
}

TEST(ScheduleCost, OneIslandTouchesEachByteOnce) {
  for (int size = 2; size <= 8; ++size) {
    const Topology topology = Topology::from_labels(std::vector<std::string>(static_cast<std::size_t>(size), "a"));
    const std::uint64_t bytes = 64 * kMiB;
    const auto schedules = all_reduce(topology, bytes);
    for (const Schedule& schedule : schedules) {
      std::uint64_t folded = 0, received = 0;
      for (const Step& step : schedule.steps) {
        if (step.kind == StepKind::kReduce) folded += step.range.bytes;
        if (step.kind == StepKind::kReceive) received += step.range.bytes;
        ASSERT_NE(step.kind, StepKind::kCopy);
        ASSERT_GE(step.range.bytes, kChunk / 2);
        ASSERT_LE(step.range.bytes, 2 * kChunk);
      }
      EXPECT_EQ(folded + received, bytes);
      EXPECT_EQ(schedule.scratch_bytes, 0u);
      const double expected = 2.0 * (size - 1) / size * static_cast<double>(bytes);
      EXPECT_NEAR(static_cast<double>(schedule.sent_bytes_inside), expected, 0.001 * expected);
    }
  }
}

TEST(ScheduleCost, LongSchedulesStayShort) {
  for (const int size : {2, 4, 8, 16}) {
    const Topology topology = Topology::from_labels(std::vector<std::string>(static_cast<std::size_t>(size), "a"));
    const Schedule schedule = build_schedule(topology, float_shape(Operation::kAllReduce, 256 * kMiB), 0);
    EXPECT_LE(schedule.steps.size(), 20000u) << size << " ranks";
  }
}

// With more than two islands, the slowest uplink must not carry more than the bound of docs/algorithms.md.
TEST(ScheduleCost, SharesFollowUplinks) {
  const std::uint64_t bytes = 64 * kMiB;
  for (const auto& uplinks : std::vector<std::vector<double>>{{1, 1, 1}, {1, 4, 4}, {10, 1, 10, 10}, {3, 2, 5, 4}}) {
    std::vector<std::string> labels;
    std::vector<double> by_rank;
    for (std::size_t island = 0; island < uplinks.size(); ++island) {
      for (std::size_t i = 0; i <= island % 2; ++i) {
        labels.push_back(std::to_string(island));
        by_rank.push_back(uplinks[island] / static_cast<double>(island % 2 + 1));
      }
    }
    const Topology topology = Topology::from_labels(labels, by_rank);
    const auto schedules = all_reduce(topology, bytes);
    const double islands = static_cast<double>(uplinks.size());
    const double bound = std::max(1 / *std::min_element(uplinks.begin(), uplinks.end()),
                                  2 * (islands - 1) / std::accumulate(uplinks.begin(), uplinks.end(), 0.0));
    for (std::size_t island = 0; island < uplinks.size(); ++island) {
      const double time =
          static_cast<double>(bridge_bytes(topology, schedules, island)) / static_cast<double>(bytes) / uplinks[island];
      EXPECT_LE(time, bound * 1.02) << "island " << island;
    }
  }
}

TEST(ScheduleCost, SmallMessagesTakeOneHopBetweenTwo) {
  const Topology two = Topology::from_labels({"a", "b"});
  const Schedule exchange = build_schedule(two, float_shape(Operation::kAllReduce, 4), 0);
  EXPECT_EQ(exchange.algorithm, "exchange");
  EXPECT_EQ(exchange.lanes.size(), 1u);
  EXPECT_EQ(exchange.steps.size(), 2u);
  const Topology three = Topology::from_labels({"a", "a", "a"});
  EXPECT_EQ(build_schedule(three, float_shape(Operation::kAllReduce, 4), 0).algorithm, "star");
  EXPECT_EQ(build_schedule(three, float_shape(Operation::kAllReduce, 8192), 0).algorithm, "owners");
}

TEST(ScheduleCost, FlatReductionSendsRawContributions) {
  const Topology topology = Topology::from_labels({"a", "a", "b", "b"}, {}, true);
  const auto schedules = all_reduce(topology, 8 * kMiB);
  // Up: each rank sends half of the message to the two ranks over the bridge. Down: each result crosses once.
  for (const Schedule& schedule : schedules) {
    EXPECT_NEAR(static_cast<double>(schedule.sent_bytes_bridge), 6.0 * kMiB, 0.01 * kMiB);
    for (const Step& step : schedule.steps) {
      EXPECT_TRUE(step.kind != StepKind::kReduce || (step.raw && step.final && step.source_count == 4));
    }
  }
}

// A range that a step writes past the caches is read by no step; small operations stay in the caches altogether.
TEST(ScheduleCost, OnlyLargeFinalResultsAreWrittenPastTheCaches) {
  const Topology topology = Topology::from_labels({"a", "b", "a", "b", "a"});
  const auto reads = [](const Step& reader, const Range& range) {
    return reader.kind == StepKind::kSend && reader.range.space == range.space &&
           reader.range.segment == range.segment && reader.range.offset == range.offset;
  };
  std::size_t past = 0;
  std::size_t sent_on = 0;
  for (const Schedule& schedule : all_reduce(topology, 8 * kMiB)) {
    for (const Step& step : schedule.steps) {
      if (step.kind != StepKind::kReceive) continue;
      const bool read = std::any_of(schedule.steps.begin(), schedule.steps.end(), [&](const Step& other) {
        return other.flow == Flow::kDown && reads(other, step.range);
      });
      EXPECT_NE(step.past_caches, read);
      ++(read ? sent_on : past);
    }
  }
  EXPECT_GT(past, 0U);
  EXPECT_GT(sent_on, 0U);
  for (const Schedule& schedule : all_reduce(topology, 8 * kMiB - 4)) {
    for (const Step& step : schedule.steps) EXPECT_FALSE(step.past_caches);
  }
}

TEST(ScheduleCost, IsDescribed) {
  const Topology topology = Topology::from_labels({"a", "b", "a"});
  const std::string text = describe_cost(build_schedule(topology, float_shape(Operation::kAllReduce, kMiB), 0));
  EXPECT_EQ(text.rfind("owners: sends ", 0), 0u) << text;
}

}  // namespace
}  // namespace atl::collectives
