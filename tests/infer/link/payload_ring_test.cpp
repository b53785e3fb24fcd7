// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/payload_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::infer {
namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(seed));
  return bytes;
}

TEST(PayloadRing, APayloadIsReadWhereItWasPut) {
  PayloadWriter writer;
  const PayloadReader reader(writer.memory());
  const Bytes bytes = pattern(kMinLentBytes, 1);
  const auto lent = writer.put(bytes);
  ASSERT_TRUE(lent);
  EXPECT_EQ(lent->bytes, bytes.size());
  EXPECT_TRUE(std::ranges::equal(reader.at(*lent), bytes));
}

TEST(PayloadRing, SmallAndLargePayloadsStayInTheirFrames) {
  PayloadWriter writer;
  EXPECT_FALSE(writer.put(Bytes(kMinLentBytes - 1)));
  EXPECT_TRUE(writer.put(Bytes(wire::kMaxDataBytes)));
  EXPECT_FALSE(writer.put(Bytes(wire::kMaxDataBytes + 1)));
  EXPECT_FALSE(writer.put({}));
  EXPECT_TRUE(writer.reserve(kMinLentBytes - 1).empty());
}

TEST(PayloadRing, WithoutRoomNothingIsPutUntilTheReaderReleases) {
  PayloadWriter writer;
  PayloadReader reader(writer.memory());
  const Bytes bytes = pattern(wire::kMaxDataBytes, 2);
  std::vector<wire::LentPayload> lent;
  while (const auto next = writer.put(bytes)) lent.push_back(*next);
  EXPECT_EQ(lent.size(), kPayloadRingBytes / wire::kMaxDataBytes);
  reader.release(lent[1]);  // and what was before it
  EXPECT_TRUE(writer.put(bytes));
  EXPECT_TRUE(writer.put(bytes));
  EXPECT_FALSE(writer.put(bytes));
  reader.release(lent.back());
  reader.release(lent[0]);  // takes nothing back
  EXPECT_TRUE(writer.put(bytes));
}

TEST(PayloadRing, RandomPayloadsComeOutAsTheyWentIn) {
  PayloadWriter writer;
  PayloadReader reader(writer.memory());
  std::mt19937_64 dice(3);
  std::deque<std::pair<wire::LentPayload, int>> under_way;
  std::uint64_t put = 0;
  for (int i = 0; i < 2'000; ++i) {
    const std::size_t size = kMinLentBytes + dice() % (wire::kMaxDataBytes - kMinLentBytes + 1);
    if (dice() % 2 == 0) {
      if (const auto lent = writer.put(pattern(size, i))) {
        under_way.emplace_back(*lent, i);
        put += size;
      }
    } else if (!under_way.empty()) {
      const auto [lent, seed] = under_way.front();
      under_way.pop_front();
      ASSERT_TRUE(std::ranges::equal(reader.at(lent), pattern(lent.bytes, seed))) << i;
      reader.release(lent);
    }
  }
  EXPECT_GT(put, 10 * kPayloadRingBytes);
}

TEST(PayloadRing, APayloadMayBeAssembledThere) {
  PayloadWriter writer;
  PayloadReader reader(writer.memory());
  const Bytes bytes = pattern(5'000, 4);
  ASSERT_EQ(writer.reserve(9'000).size(), 9'000U);  // given up
  const std::span<std::byte> room = writer.reserve(bytes.size());
  ASSERT_EQ(room.size(), bytes.size());
  EXPECT_TRUE(writer.is_reserved(room));
  EXPECT_FALSE(writer.is_reserved(bytes));
  std::ranges::copy(bytes, room.begin());
  const wire::LentPayload lent = writer.commit(room);
  const auto after = writer.put(pattern(4'096, 5));
  ASSERT_TRUE(after);
  EXPECT_TRUE(std::ranges::equal(reader.at(lent), bytes));
  EXPECT_TRUE(std::ranges::equal(reader.at(*after), pattern(4'096, 5)));
}

TEST(PayloadRing, AnotherWriterContinues) {
  PayloadWriter first;
  PayloadReader reader(first.memory());
  const auto before = first.put(pattern(8'000, 6));
  ASSERT_TRUE(before);
  PayloadWriter second(first.memory(), first.head());
  EXPECT_FALSE(second.memory());
  std::vector<wire::LentPayload> lent;
  while (const auto next = second.put(pattern(wire::kMaxDataBytes, static_cast<int>(lent.size()))))
    lent.push_back(*next);
  ASSERT_EQ(lent.size(), kPayloadRingBytes / wire::kMaxDataBytes - 1);
  EXPECT_TRUE(std::ranges::equal(reader.at(*before), pattern(8'000, 6)));
  for (std::size_t i = 0; i < lent.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(reader.at(lent[i]), pattern(wire::kMaxDataBytes, static_cast<int>(i))));
  }
}

TEST(PayloadRing, AReaderThatReleasesWhatWasNeverPutGetsNothingMore) {
  PayloadWriter writer;
  PayloadReader reader(writer.memory());
  std::uint64_t end = 0;
  while (const auto lent = writer.put(Bytes(wire::kMaxDataBytes))) end = lent->position + lent->bytes;
  reader.release({end, 64});
  EXPECT_FALSE(writer.put(Bytes(kMinLentBytes)));
}

TEST(PayloadRing, AnyPlaceThatAStrangerNamesIsInsideTheMemory) {
  PayloadWriter writer;
  const PayloadReader reader(writer.memory());
  for (const std::uint64_t position : {std::uint64_t{0}, std::uint64_t{kPayloadRingBytes - 1}, UINT64_MAX}) {
    const std::span<const std::byte> bytes = reader.at({position, wire::kMaxDataBytes});
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }));
  }
  EXPECT_THROW(static_cast<void>(reader.at({0, wire::kMaxDataBytes + 1})), Error);
}

TEST(PayloadRing, OtherMemoryIsRefused) {
  const Fd other = transport::make_sealed_memfd("atoll-test", 8'192);
  EXPECT_THROW(PayloadReader{other}, Error);
  EXPECT_THROW(PayloadWriter(other, 0), Error);
}

}  // namespace
}  // namespace atl::infer
