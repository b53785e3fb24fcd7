// SPDX-License-Identifier: Apache-2.0
// Frames that are lent instead of copied, over a ring whose ends the test plays.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "atoll/transport/shared_memory.h"
#include "atoll/transport/shm/ring.h"
#include "tests/support/error_of.h"

namespace atl::transport {
namespace {

constexpr std::size_t kBudget = std::size_t{64} << 20;
constexpr std::size_t kBytes = 5000;

FrameHeader header_of(std::size_t bytes, std::uint64_t sequence = 0, Payload where = Payload::kLent) {
  FrameHeader header;
  header.where = where;
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  header.sequence = sequence;
  return header;
}

/// Both ends of a ring, the writer's arena and some memory in it.
struct LendingRing {
  LendingRing() {
    std::memset(data, 3, kBytes);
    pass();
  }
  void pass() {
    const auto [slab, bytes] = arena.memory_of(place.slab);
    lender.add(place.slab, slab, bytes);
  }

  Arena arena{kBudget};
  std::byte* data = static_cast<std::byte*>(arena.allocate(kBytes));
  ArenaPlace place = arena.find(data, kBytes).value();
  RingWriter writer{kMinWindowBytes};
  PeerArena lender;
  Fd memory = writer.take_memory();
  RingReader reader{memory, kMinWindowBytes, &lender};
};

TEST(Lending, TheReaderReadsTheWritersMemory) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 9), ring.place));
  EXPECT_FALSE(ring.writer.has_returned());
  const Frame* const frame = ring.reader.front();
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->header.sequence, 9U);
  ASSERT_EQ(frame->payload.size(), kBytes);
  ring.data[kBytes - 1] = std::byte{77};  // seen by the reader: nothing was copied
  EXPECT_EQ(frame->payload[kBytes - 1], std::byte{77});
  EXPECT_TRUE(ring.reader.is_intact());
  ring.reader.pop();
  EXPECT_TRUE(ring.writer.has_returned());
}

TEST(Lending, KeepsTheOrderAmongCopiedFrames) {
  LendingRing ring;
  std::vector<std::byte> copied(100, std::byte{5});
  for (std::uint64_t i = 0; i < 3000; ++i) {
    if (i % 3 == 0) {
      ASSERT_TRUE(ring.writer.try_write(header_of(copied.size(), i, Payload::kHere), copied));
    } else {
      ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, i), ring.place));
    }
    const Frame* const frame = ring.reader.front();
    ASSERT_NE(frame, nullptr);
    ASSERT_EQ(frame->header.sequence, i);
    ASSERT_EQ(frame->payload[0], i % 3 == 0 ? std::byte{5} : std::byte{3});
    ring.reader.pop();
  }
}

TEST(Lending, AFullWindowRefuses) {
  LendingRing ring;
  std::size_t lent = 0;
  while (ring.writer.try_lend(header_of(kBytes), ring.place)) ++lent;
  EXPECT_EQ(lent, kMinWindowBytes / 128);  // however large the payload is
  ASSERT_NE(ring.reader.front(), nullptr);
  ring.reader.pop();
  EXPECT_TRUE(ring.writer.try_lend(header_of(kBytes), ring.place));
}

// Proves T-11.
TEST(Lending, WhatWasRevokedIsNotIntact) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes), ring.place));
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 1), ring.place));
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_TRUE(ring.reader.is_intact());
  ring.writer.revoke();
  EXPECT_TRUE(ring.writer.has_returned());
  EXPECT_FALSE(ring.reader.is_intact());
  ring.reader.pop();
  ASSERT_NE(ring.reader.front(), nullptr);  // lent before, and not looked at until now
  EXPECT_FALSE(ring.reader.is_intact());
  ring.reader.pop();
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 2), ring.place));
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_EQ(ring.reader.front()->header.sequence, 2U);
  EXPECT_TRUE(ring.reader.is_intact());
}

TEST(Lending, TheReaderWritesWhatIsLentForTheResult) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes), ring.place));
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_EQ(ring.reader.begin_write(), nullptr);  // lent for reading
  ring.reader.pop();
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 1, Payload::kForResult), ring.place));
  ASSERT_NE(ring.reader.front(), nullptr);
  std::byte* const memory = ring.reader.begin_write();
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 99, kBytes);
  ring.reader.end_write();
  ring.reader.pop();
  EXPECT_TRUE(ring.writer.has_returned());
  EXPECT_EQ(ring.data[0], std::byte{99});
  EXPECT_EQ(ring.data[kBytes - 1], std::byte{99});
}

// Proves T-11.
TEST(Lending, WhatWasRevokedIsNotWritten) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 0, Payload::kForResult), ring.place));
  ASSERT_NE(ring.reader.front(), nullptr);
  for (int times = 0; times < 3; ++times) {
    ring.writer.revoke();
    EXPECT_EQ(ring.reader.begin_write(), nullptr);
    EXPECT_FALSE(ring.reader.is_intact());
    EXPECT_FALSE(ring.writer.written_range());  // the attempt has left no trace
  }
}

TEST(Lending, WhatTheReaderWritesIsSeenUntilItHasFinished) {
  LendingRing ring;
  const ArenaPlace second{ring.place.slab, ring.place.offset + 1000};
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 0, Payload::kForResult), ring.place));
  ASSERT_TRUE(ring.writer.try_lend(header_of(2000, 1, Payload::kForResult), second));
  ASSERT_NE(ring.reader.front(), nullptr);
  ring.reader.pop();
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_FALSE(ring.writer.written_range());
  ASSERT_NE(ring.reader.begin_write(), nullptr);
  ring.writer.revoke();
  const auto range = ring.writer.written_range();
  ASSERT_TRUE(range);
  EXPECT_EQ(range->place.slab, second.slab);
  EXPECT_EQ(range->place.offset, second.offset);
  EXPECT_EQ(range->bytes, 2000U);
  ring.reader.end_write();
  EXPECT_FALSE(ring.writer.written_range());
}

TEST(Lending, AResultThatIsThereNeedsNoMemory) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 4, Payload::kThere), {}));
  EXPECT_TRUE(ring.writer.has_returned());
  const Frame* const frame = ring.reader.front();
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->header.payload_bytes, kBytes);
  EXPECT_TRUE(frame->payload.empty());
  EXPECT_TRUE(ring.reader.is_intact());
  ring.reader.pop();
  EXPECT_EQ(ring.reader.front(), nullptr);
}

TEST(Lending, AFrameWaitsForItsSlab) {
  LendingRing ring;
  void* const other = ring.arena.allocate(std::size_t{20} << 20);
  ring.place = ring.arena.find(other, kBytes).value();
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes), ring.place));
  EXPECT_EQ(ring.reader.front(), nullptr);
  ring.pass();
  EXPECT_NE(ring.reader.front(), nullptr);
  ring.arena.free(other);
}

// A refused operation's frame must not keep later ones from being seen.
TEST(Lending, ARevokedFrameNeedsNoSlab) {
  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes), {ring.place.slab + 1, 0}));
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 1), ring.place));
  EXPECT_EQ(ring.reader.front(), nullptr);
  ring.writer.revoke();
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_TRUE(ring.reader.front()->payload.empty());
  EXPECT_FALSE(ring.reader.is_intact());
  const auto view = MappedRing::map(ring.memory, sizeof(RingControl), kMinWindowBytes, MappedRing::Access::kReadWrite);
  reinterpret_cast<RingControl*>(view.control())->revoked = 0;  // a peer that takes it back
  EXPECT_FALSE(ring.reader.is_intact());
  ring.reader.pop();
  ASSERT_NE(ring.reader.front(), nullptr);
  EXPECT_EQ(ring.reader.front()->header.sequence, 1U);
}

// Proves T-10.
TEST(Lending, WhatCannotBeReadIsAProtocolError) {
  const auto kind_for = [](const ArenaPlace& place, std::size_t bytes) {
    LendingRing ring;
    EXPECT_TRUE(ring.writer.try_lend(header_of(bytes), {ring.place.slab, place.offset}));
    return test::error_of([&] { ring.reader.front(); }).kind();
  };
  EXPECT_EQ(kind_for({0, std::uint64_t{1} << 40}, kBytes), ErrorKind::kProtocol);
  EXPECT_EQ(kind_for({0, ~std::uint64_t{0}}, kBytes), ErrorKind::kProtocol);
  EXPECT_EQ(kind_for({0, (std::uint64_t{16} << 20) - kBytes + 1}, kBytes), ErrorKind::kProtocol);
  EXPECT_EQ(kind_for({0, 4096}, kMinWindowBytes), ErrorKind::kProtocol);  // larger than a frame may be

  LendingRing ring;
  ASSERT_TRUE(ring.writer.try_lend(header_of(kBytes, 0, static_cast<Payload>(4)), ring.place));
  EXPECT_EQ(test::error_of([&] { ring.reader.front(); }).kind(), ErrorKind::kProtocol);

  RingWriter writer(kMinWindowBytes);
  RingReader without_arena(writer.take_memory(), kMinWindowBytes);
  ASSERT_TRUE(writer.try_lend(header_of(kBytes), {1, 4096}));
  EXPECT_EQ(test::error_of([&] { without_arena.front(); }).kind(), ErrorKind::kProtocol);
}

TEST(Lending, ASlabIsCheckedBeforeItIsMapped) {
  LendingRing ring;
  EXPECT_EQ(test::error_of([&] { ring.pass(); }).kind(), ErrorKind::kProtocol);  // twice
  const Fd small = make_sealed_memfd("small", 4096);
  EXPECT_EQ(test::error_of([&] { ring.lender.add(100, small, 8192); }).kind(), ErrorKind::kProtocol);
  EXPECT_EQ(test::error_of([&] { ring.lender.add(100, small, 0); }).kind(), ErrorKind::kProtocol);
  EXPECT_EQ(test::error_of([&] { ring.lender.add(100, small, ~std::uint64_t{0}); }).kind(), ErrorKind::kProtocol);
}

}  // namespace
}  // namespace atl::transport
