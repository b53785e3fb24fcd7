// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace atl::collectives {
namespace {

// Chunks of one message are contiguous, none is too large, and none is empty unless it is the only one.
void expect_cover(const std::vector<Chunk>& chunks, std::uint64_t bytes, std::uint64_t max_bytes,
                  std::uint64_t element_bytes) {
  std::uint64_t offset = 0;
  for (const Chunk& chunk : chunks) {
    ASSERT_EQ(chunk.offset, offset);
    ASSERT_EQ(chunk.bytes % element_bytes, 0u);
    ASSERT_LE(chunk.bytes, max_bytes);
    ASSERT_TRUE(chunk.bytes > 0 || chunks.size() == 1);
    offset += chunk.bytes;
  }
  ASSERT_EQ(offset, bytes);
}

TEST(ScheduleChunks, MessagesAreCutEvenly) {
  for (const std::uint64_t element : {1, 2, 4, 8, 16}) {
    for (const std::uint64_t most : {16, 48, 64, 256, 4096}) {
      for (std::uint64_t count = 0; count < 700; ++count) {
        const auto chunks = cut_message(count * element, most, element, 3, 5);
        ASSERT_NO_FATAL_FAILURE(expect_cover(chunks, count * element, most, element));
        ASSERT_EQ(chunks.size(), std::max<std::uint64_t>(1, (count * element + most - 1) / most));
        ASSERT_TRUE(std::all_of(chunks.begin(), chunks.end(),
                                [](const Chunk& chunk) { return chunk.owner == 3 && chunk.segment == 5; }));
      }
    }
  }
}

TEST(ScheduleChunks, BordersAreLinesWherePartsAreLarge) {
  for (const std::uint64_t border : cut_evenly(1000, 7, 4)) EXPECT_TRUE(border % 16 == 0 || border == 1000);
  EXPECT_EQ(cut_evenly(10, 2, 4), (std::vector<std::uint64_t>{0, 5, 10}));
}

TEST(ScheduleChunks, OwnersCoverTheMessage) {
  const std::vector<Topology> topologies{Topology::from_labels(std::vector<std::string>(3, "a")),
                                         Topology::from_labels(std::vector<std::string>(100, "a")),
                                         Topology::from_labels({"a", "b", "b", "c"}),
                                         Topology::from_labels({"a", "b", "c"}, {1, 10, 10})};
  for (const Topology& topology : topologies) {
    for (const std::uint64_t element : {1, 4, 16}) {
      for (const std::uint64_t payload : {64, 1024, 262144}) {
        for (const std::uint64_t count : {0, 1, 17, 1000, 9973, 300007}) {
          const ScheduleLimits limits{payload, payload * 4, 0};
          if (count * element / payload > 20000) continue;
          const auto chunks = cut_for_owners(topology, count * element, element, limits);
          ASSERT_NO_FATAL_FAILURE(expect_cover(chunks, count * element, payload, element));
          std::vector<std::uint64_t> rounds(static_cast<std::size_t>(topology.size), 0);
          for (const Chunk& chunk : chunks) ASSERT_EQ(chunk.round, rounds[static_cast<std::size_t>(chunk.owner)]++);
        }
      }
    }
  }
}

TEST(ScheduleChunks, LargeOperationsTakeLargeFramesInsideAnIslandOnly) {
  const Topology inside = Topology::from_labels({"a", "a"});
  const Topology bridged = Topology::from_labels({"a", "b"});
  const ScheduleLimits limits;
  EXPECT_LT(chunk_bytes(inside, 1 << 20, 4, limits), limits.max_payload);
  EXPECT_EQ(chunk_bytes(inside, 64 << 20, 4, limits), limits.max_payload);
  EXPECT_LT(chunk_bytes(bridged, 64 << 20, 4, limits), limits.max_payload);
  EXPECT_EQ(chunk_bytes(bridged, std::uint64_t{1} << 30, 4, limits), limits.max_payload);
}

TEST(ScheduleChunks, MessagesTakeTurns) {
  const Topology topology = Topology::from_labels(std::vector<std::string>(3, "a"));
  const auto chunks = cut_messages(topology, {100, 0, 40}, {0, 1, 2}, 4, {64, 512, 0});
  std::vector<int> owners;
  for (const Chunk& chunk : chunks) owners.push_back(chunk.owner);
  EXPECT_EQ(owners, (std::vector<int>{0, 1, 2, 0, 2, 0, 2, 0, 0, 0, 0}));
}

TEST(ScheduleChunks, SharesSumToOne) {
  const auto sum = [](const std::vector<double>& shares) { return std::accumulate(shares.begin(), shares.end(), 0.0); };
  EXPECT_EQ(owner_shares(Topology::from_labels({"a", "b", "b", "b"}, {5, 1, 1, 1})), std::vector<double>(4, 0.25));
  const auto equal = owner_shares(Topology::from_labels({"a", "b", "b", "c"}));
  EXPECT_NEAR(equal[0], 1.0 / 3, 1e-12);
  EXPECT_NEAR(equal[1], 1.0 / 6, 1e-12);
  EXPECT_NEAR(sum(equal), 1, 1e-12);
  const auto slow = owner_shares(Topology::from_labels({"a", "b", "c"}, {1, 10, 10}));
  EXPECT_EQ(slow[0], 0);  // its uplink is busy with its own contributions alone
  EXPECT_NEAR(sum(slow), 1, 1e-12);
}

// Ranks of one group may have different processors, and each computes the shares for itself.
TEST(ScheduleChunks, SharesHaveTheSameBitsOnEveryProcessor) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a over words
  for (int uplinks = 0; uplinks < 12 * 12 * 12; ++uplinks) {
    const std::vector<double> rates{uplinks / 144 + 1.0, uplinks / 12 % 12 + 1.0, uplinks % 12 + 1.0};
    for (const double share : owner_shares(Topology::from_labels({"a", "b", "c"}, rates))) {
      hash = (hash ^ std::bit_cast<std::uint64_t>(share)) * 0x100000001B3ULL;
    }
  }
  EXPECT_EQ(hash, 0xBDD28D35322B22F4ULL);
}

}  // namespace
}  // namespace atl::collectives
