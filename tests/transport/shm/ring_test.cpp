// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/ring.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

constexpr std::size_t kRingWindow = kMinWindowBytes;

std::vector<std::byte> filled(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(seed * 31 + i * 7);
  return data;
}

FrameHeader header_for(const std::vector<std::byte>& payload, std::uint64_t sequence) {
  FrameHeader header;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.sequence = sequence;
  return header;
}

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

/// A ring with both ends in this process, and a third view through which a misbehaving peer writes.
struct Ring {
  RingWriter writer{kRingWindow};
  Fd memory = writer.take_memory();
  MappedRing view = MappedRing::map(memory, sizeof(RingControl), kRingWindow, MappedRing::Access::kReadWrite);
  RingReader reader{memory, kRingWindow};
  RingControl& control() { return *reinterpret_cast<RingControl*>(view.control()); }
};

TEST(ShmRing, FramesStayContiguousAcrossTheEnd) {
  Ring ring;
  std::mt19937 random(1);
  for (unsigned i = 0; i < 5000; ++i) {
    const auto payload = filled(random() % (max_payload_of(kRingWindow) + 1), i);
    ASSERT_TRUE(ring.writer.try_write(header_for(payload, i), payload));
    const Frame* const frame = ring.reader.front();
    ASSERT_NE(frame, nullptr);
    EXPECT_EQ(frame->header.sequence, i);
    ASSERT_EQ(frame->payload.size(), payload.size());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame->payload.data()) % 64, 0U);
    ASSERT_TRUE(payload.empty() || std::memcmp(frame->payload.data(), payload.data(), payload.size()) == 0);
    ring.reader.pop();
  }
  EXPECT_EQ(ring.reader.front(), nullptr);
}

TEST(ShmRing, HoldsExactlyItsWindow) {
  Ring ring;
  const auto payload = filled(64, 1);
  std::size_t written = 0;
  while (ring.writer.try_write(header_for(payload, written), payload)) ++written;
  EXPECT_EQ(written, kRingWindow / 128);
  ASSERT_NE(ring.reader.front(), nullptr);
  ring.reader.pop();
  EXPECT_TRUE(ring.writer.try_write(header_for(payload, written), payload));
  EXPECT_FALSE(ring.writer.try_write(header_for(payload, written), payload));
}

TEST(ShmRing, AFrameStaysValidUntilPop) {
  Ring ring;
  const auto first = filled(1000, 1);
  ASSERT_TRUE(ring.writer.try_write(header_for(first, 1), first));
  const Frame* const frame = ring.reader.front();
  const auto next = filled(64, 2);
  while (ring.writer.try_write(header_for(next, 2), next)) {
  }
  EXPECT_EQ(ring.reader.front(), frame);
  EXPECT_EQ(std::memcmp(frame->payload.data(), first.data(), first.size()), 0);
}

TEST(ShmRing, ThreadsMoveAMillionFrames) {
  Ring ring;
  constexpr std::uint64_t kFrames = 1'000'000;
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      std::array<std::uint64_t, 16> payload;
      payload.fill(i * 0x9e3779b97f4a7c15);
      const auto bytes = std::as_bytes(std::span(payload)).first(i % 129);
      FrameHeader header;
      header.payload_bytes = static_cast<std::uint32_t>(bytes.size());
      header.sequence = i;
      while (!ring.writer.try_write(header, bytes)) std::this_thread::yield();
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    const Frame* frame = nullptr;
    while ((frame = ring.reader.front()) == nullptr) std::this_thread::yield();
    const std::uint64_t word = i * 0x9e3779b97f4a7c15;
    bool right = frame->header.sequence == i && frame->payload.size() == i % 129;
    for (std::size_t at = 0; right && at + 8 <= frame->payload.size(); at += 8) {
      right = std::memcmp(frame->payload.data() + at, &word, 8) == 0;
    }
    wrong += right ? 0 : 1;
    ring.reader.pop();
  }
  sender.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(ShmRing, AClosedReaderDropsWhatFindsNoRoom) {
  Ring ring;
  const auto payload = filled(1000, 1);
  while (ring.writer.try_write(header_for(payload, 0), payload)) {
  }
  ring.reader.close();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(ring.writer.try_write(header_for(payload, 0), payload));
}

TEST(ShmRing, WindowSizesAreBounded) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{4096}, kMinWindowBytes + 64, 3 * kMinWindowBytes, 2 * kMaxWindowBytes}) {
    EXPECT_FALSE(is_valid_window(bytes));
    EXPECT_EQ(kind_of([&] { const RingWriter writer(bytes); }), ErrorKind::kInvalidArgument);
  }
  EXPECT_TRUE(is_valid_window(kMinWindowBytes));
  EXPECT_TRUE(is_valid_window(kMaxWindowBytes));
}

TEST(ShmRing, ReaderRefusesMemoryOfAnotherKind) {
  const Fd short_memory = make_sealed_memfd("short", kRingWindow);
  EXPECT_EQ(kind_of([&] { const RingReader reader(short_memory, kRingWindow); }), ErrorKind::kProtocol);

  const Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096 + kRingWindow), 0);
  EXPECT_EQ(kind_of([&] { const RingReader reader(unsealed, kRingWindow); }), ErrorKind::kProtocol);

  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const Fd ordinary(::dup(::fileno(file)));
  ASSERT_EQ(::ftruncate(ordinary.get(), 4096 + kRingWindow), 0);
  EXPECT_EQ(kind_of([&] { const RingReader reader(ordinary, kRingWindow); }), ErrorKind::kProtocol);
  std::fclose(file);
}

TEST(ShmRing, ReaderRefusesPositionsThatDoNotAddUp) {
  for (const std::uint64_t head :
       {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{kRingWindow + 64}, ~std::uint64_t{0}, ~std::uint64_t{63}}) {
    Ring ring;
    ring.control().head.store(head);
    EXPECT_EQ(kind_of([&] { ring.reader.front(); }), ErrorKind::kProtocol) << head;
  }
}

TEST(ShmRing, ReaderRefusesPositionsThatGoBack) {
  Ring ring;
  const auto payload = filled(64, 1);
  ASSERT_TRUE(ring.writer.try_write(header_for(payload, 1), payload));
  ASSERT_NE(ring.reader.front(), nullptr);
  ring.reader.pop();
  ring.control().head.store(0);
  EXPECT_EQ(kind_of([&] { ring.reader.front(); }), ErrorKind::kProtocol);
}

TEST(ShmRing, ReaderRefusesLengthsBeyondWhatIsThere) {
  for (const std::uint32_t length :
       {65U, 4096U, static_cast<unsigned>(kRingWindow / 4 + 1), 0xffffffffU, 0xffffffc1U}) {
    Ring ring;
    const auto payload = filled(64, 1);
    ASSERT_TRUE(ring.writer.try_write(header_for(payload, 1), payload));
    std::memcpy(ring.view.data(), &length, sizeof(length));
    EXPECT_EQ(kind_of([&] { ring.reader.front(); }), ErrorKind::kProtocol) << length;
  }
}

TEST(ShmRing, AFrameThatWasCheckedDoesNotChangeItsLength) {
  Ring ring;
  const auto payload = filled(64, 1);
  ASSERT_TRUE(ring.writer.try_write(header_for(payload, 1), payload));
  ASSERT_NE(ring.reader.front(), nullptr);
  const std::uint32_t length = 0xffffffff;
  std::memcpy(ring.view.data(), &length, sizeof(length));
  EXPECT_EQ(ring.reader.front()->header.payload_bytes, 64U);
  ring.reader.pop();
  EXPECT_EQ(ring.reader.front(), nullptr);
}

TEST(ShmRing, WriterRefusesPositionsThatDoNotAddUp) {
  for (const std::uint64_t tail : {std::uint64_t{kRingWindow + 64}, ~std::uint64_t{0}}) {
    Ring ring;
    const auto payload = filled(64, 1);
    ring.control().tail.store(tail);
    EXPECT_EQ(kind_of([&] {
                while (ring.writer.try_write(header_for(payload, 0), payload)) {
                }
              }),
              ErrorKind::kProtocol)
        << tail;
  }
}

// Proves T-10.
TEST(ShmRing, RandomBytesInTheControlAreaNeverReachOutside) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Ring ring;
    for (std::size_t at = 0; at < kRingWindow; at += 64) {
      const std::uint64_t word = random() % (at % 128 == 0 ? 20'000 : ~0ULL);
      std::memcpy(ring.view.data() + at, &word, sizeof(word));
    }
    ring.control().head.store(random() % 4 == 0 ? random() : random() % (kRingWindow / 64) * 64);
    std::size_t sum = 0;
    try {
      for (int i = 0; i < 2000; ++i) {
        const Frame* const frame = ring.reader.front();
        if (frame == nullptr) break;
        for (const std::byte byte : frame->payload) sum += static_cast<std::size_t>(byte);
        ring.reader.pop();
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
      ++refused;
    }
    ASSERT_LT(sum, 256 * kRingWindow);
  }
  EXPECT_GT(refused, 1000);
}

TEST(RingCopy, CopiesAreWholeThroughTrialsOfBothKinds) {
  RingCopy copy(kRingWindow);
  const auto from = filled(kRingWindow, 7);
  for (std::size_t i = 0; i < 9000; ++i) {  // more bytes than lie between two trials
    const std::size_t bytes = i % 3 == 0 ? i % 5000 : kRingWindow / 4 - i % 129;
    const std::size_t at = i % 64;
    std::vector<std::byte> to(bytes + 128, std::byte{0xa5});
    copy(to.data() + at, from.data() + i % 100, bytes);
    ASSERT_EQ(std::memcmp(to.data() + at, from.data() + i % 100, bytes), 0) << bytes;
    ASSERT_TRUE(to[at + bytes] == std::byte{0xa5} && (at == 0 || to[at - 1] == std::byte{0xa5})) << bytes;
  }
}

}  // namespace
}  // namespace atl::transport
