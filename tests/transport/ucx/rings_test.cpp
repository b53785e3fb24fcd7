// SPDX-License-Identifier: Apache-2.0
// The rings of a UCX channel, with a path in between that brings, begins and ends transfers in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/wire.h"
#include "atoll/transport/ucx/rings.h"
#include "tests/transport/link_contract.h"

namespace atl::test {
namespace {

using transport::footprint;
using transport::FrameHeader;
using transport::ucx::ReceiveRing;
using transport::ucx::SendRing;

constexpr std::size_t kUcxWindow = std::size_t{64} << 10;

bool write(SendRing& ring, std::uint64_t seed, std::size_t bytes) {
  return ring.try_write(numbered_header(seed, bytes), pattern(seed, bytes));
}

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

/// Simulates a network: some messages are on their way, some are being fetched, some still hold the sender's memory.
struct Path {
  struct Transfer {
    SendRing::Piece piece;
    std::byte* to = nullptr;
  };
  SendRing& out;
  ReceiveRing& in;
  std::mt19937& random;
  std::vector<Transfer> sent{};
  std::vector<Transfer> started{};
  std::vector<std::uint64_t> held{};

  template <class T>
  T take(std::vector<T>& from) {
    std::swap(from[random() % from.size()], from.back());
    T value = from.back();
    from.pop_back();
    return value;
  }

  void step() {
    switch (random() % 4) {
      case 0:
        if (const auto piece = out.next()) sent.push_back({*piece});
        return;
      case 1:
        if (sent.empty()) return;
        started.push_back(take(sent));
        started.back().to = in.begin_on_loop(started.back().piece.position, started.back().piece.bytes.size());
        return;
      case 2: {
        if (started.empty()) return;
        const Transfer done = take(started);
        std::memcpy(done.to, done.piece.bytes.data(), done.piece.bytes.size());
        in.finish_on_loop(done.piece.position, done.piece.bytes.size());
        held.push_back(done.piece.position);
        return;
      }
      default:
        if (!held.empty()) out.done(take(held));
    }
  }
};

TEST(UcxRings, FramesKeepTheirOrderOverAPathThatKeepsNone) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SendRing out(kUcxWindow);
    ReceiveRing in;
    in.open_on_loop(kUcxWindow);
    Path path{out, in, random};
    constexpr std::uint64_t kFrames = 600;
    std::vector<std::size_t> sizes(kFrames);
    for (auto& bytes : sizes) bytes = random() % 3 == 0 ? random() % (kUcxWindow / 4 + 1) : random() % 200;
    std::uint64_t written = 0;
    std::uint64_t read = 0;
    for (std::uint64_t steps = 0; read < kFrames; ++steps) {
      ASSERT_LT(steps, 1'000'000U) << "stuck at " << written << " written, " << read << " read";
      if (written < kFrames && random() % 3 == 0 && write(out, written, sizes[written])) ++written;
      path.step();
      if (random() % 4 == 0) out.release(in.popped());
      if (random() % 3 != 0) continue;
      const auto* const frame = in.front();
      if (frame == nullptr) continue;
      ASSERT_EQ(frame->header.sequence, numbered_header(read, 0).sequence);
      ASSERT_TRUE(std::ranges::equal(frame->payload, pattern(read, sizes[read])));
      ++read;
      in.pop();
    }
    EXPECT_EQ(in.front(), nullptr);
    EXPECT_EQ(in.received(), out.written());
  }
}

TEST(UcxRings, APlaceIsUsedAgainOnlyWhenItsTransferIsDoneAndItsFrameReleased) {
  SendRing ring(kUcxWindow);
  const std::size_t bytes = kUcxWindow / 4 - sizeof(FrameHeader);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(write(ring, i, bytes));
  ASSERT_FALSE(write(ring, 4, 0));
  std::vector<SendRing::Piece> pieces;
  while (const auto piece = ring.next()) pieces.push_back(*piece);
  ASSERT_EQ(pieces.size(), 4U);
  ring.release(kUcxWindow);
  EXPECT_FALSE(write(ring, 4, 0)) << "UCX still reads all of it";
  ring.done(pieces[1].position);
  EXPECT_FALSE(write(ring, 4, 0)) << "the first one holds its place";
  ring.done(pieces[0].position);
  EXPECT_TRUE(write(ring, 4, bytes));
  EXPECT_TRUE(write(ring, 5, bytes)) << "the second was done before";
  EXPECT_FALSE(write(ring, 6, 0));
  SendRing other(kUcxWindow);
  ASSERT_TRUE(write(other, 0, bytes));
  other.done(other.next()->position);
  for (std::uint64_t i = 1; i < 4; ++i) ASSERT_TRUE(write(other, i, bytes));
  EXPECT_FALSE(write(other, 4, 0)) << "done, but not released";
}

TEST(UcxRings, CreditMayComeLateButNotForWhatWasNeverSent) {
  SendRing ring(kUcxWindow);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(write(ring, i, 0));
  EXPECT_EQ(kind_of([&] { ring.release(64); }), ErrorKind::kProtocol) << "written, but not sent";
  while (ring.next()) {
  }
  ring.release(128);
  ring.release(64);
  EXPECT_EQ(ring.released(), 128U);
  EXPECT_EQ(kind_of([&] { ring.release(193); }), ErrorKind::kProtocol);
}

TEST(UcxRings, WhatHasNoCreditOrNoSenseIsRefused) {
  const auto begin = [](std::uint64_t position, std::uint64_t bytes) {
    ReceiveRing ring;
    ring.open_on_loop(kUcxWindow);
    ring.begin_on_loop(64, 64);
    return kind_of([&] { ring.begin_on_loop(position, bytes); });
  };
  EXPECT_EQ(begin(0, 64), ErrorKind::kInternal) << "nothing is wrong with it";
  EXPECT_EQ(begin(kUcxWindow - 64, 64), ErrorKind::kInternal);
  EXPECT_EQ(begin(64, 64), ErrorKind::kProtocol) << "twice";
  EXPECT_EQ(begin(1, 64), ErrorKind::kProtocol);
  EXPECT_EQ(begin(0, 63), ErrorKind::kProtocol) << "less than a header";
  EXPECT_EQ(begin(0, 64 + kUcxWindow / 4 + 1), ErrorKind::kProtocol);
  EXPECT_EQ(begin(kUcxWindow, 64), ErrorKind::kProtocol);
  EXPECT_EQ(begin(kUcxWindow - 64, 65), ErrorKind::kProtocol);
  EXPECT_EQ(begin(~std::uint64_t{63}, 64), ErrorKind::kProtocol) << "round the end of all numbers";
}

TEST(UcxRings, WhatHasComeIsNotWrittenOver) {
  ReceiveRing ring;
  ring.open_on_loop(kUcxWindow);
  const auto put = [&](std::uint64_t position, std::uint32_t stated) {
    FrameHeader header;
    header.payload_bytes = stated;
    std::byte* const to = ring.begin_on_loop(position, 64);
    std::memcpy(to, &header, sizeof header);
    return ring.finish_on_loop(position, 64);
  };
  EXPECT_TRUE(put(0, 0));
  EXPECT_EQ(kind_of([&] { ring.begin_on_loop(0, 64); }), ErrorKind::kProtocol);
  EXPECT_FALSE(put(128, 0)) << "the one before it is missing";
  EXPECT_TRUE(put(64, 0));
  EXPECT_EQ(ring.received(), 192U);
  EXPECT_EQ(kind_of([&] { put(192, 7); }), ErrorKind::kProtocol) << "another size than it has";
}

TEST(UcxRings, WindowsAreCheckedAndStayAsTheyAre) {
  for (const std::uint64_t window :
       {std::uint64_t{1} << 15, std::uint64_t{1} << 31, (std::uint64_t{1} << 16) + 64, std::uint64_t{1} << 63}) {
    ReceiveRing ring;
    EXPECT_EQ(kind_of([&] { ring.open_on_loop(window); }), ErrorKind::kProtocol) << window;
  }
  ReceiveRing ring;
  ring.open_on_loop(kUcxWindow);
  ring.open_on_loop(kUcxWindow);
  EXPECT_EQ(kind_of([&] { ring.open_on_loop(2 * kUcxWindow); }), ErrorKind::kProtocol);
}

TEST(UcxRings, AClosedRingDropsAndGivesCreditForAll) {
  SendRing out(kUcxWindow);
  ReceiveRing in;
  in.open_on_loop(kUcxWindow);
  const std::size_t bytes = 1000;
  std::vector<SendRing::Piece> pieces;
  for (std::uint64_t i = 0; write(out, i, bytes); ++i) pieces.push_back(*out.next());
  // One has come, one is on its way into the ring, the rest begins after the end.
  std::memcpy(in.begin_on_loop(pieces[0].position, pieces[0].bytes.size()), pieces[0].bytes.data(),
              pieces[0].bytes.size());
  in.finish_on_loop(pieces[0].position, pieces[0].bytes.size());
  ASSERT_NE(in.begin_on_loop(pieces[1].position, pieces[1].bytes.size()), nullptr);
  in.close_on_loop();
  EXPECT_EQ(in.popped(), footprint(bytes));
  in.finish_on_loop(pieces[1].position, pieces[1].bytes.size());
  EXPECT_EQ(in.popped(), 2 * footprint(bytes));
  for (std::size_t i = 2; i < pieces.size(); ++i) {
    EXPECT_EQ(in.begin_on_loop(pieces[i].position, pieces[i].bytes.size()), nullptr);
  }
  EXPECT_EQ(in.popped(), out.written());
  out.release(in.popped());
  for (const auto& piece : pieces) out.done(piece.position);
  EXPECT_TRUE(write(out, 0, bytes));
}

// The first frame, which a large one has overtaken, makes too little room for the next large one.
TEST(UcxRings, AClosedRingGivesCreditForFramesThatCameAheadOfOthers) {
  SendRing out(kUcxWindow);
  ReceiveRing in;
  in.open_on_loop(kUcxWindow);
  ASSERT_TRUE(write(out, 0, 0));
  while (write(out, 1, kUcxWindow / 8)) {
  }
  std::vector<SendRing::Piece> pieces;
  while (const auto piece = out.next()) pieces.push_back(*piece);
  std::vector<std::byte*> places;
  for (const auto& piece : pieces) places.push_back(in.begin_on_loop(piece.position, piece.bytes.size()));
  for (std::size_t i = pieces.size() - 1; i > 0; --i) {
    std::memcpy(places[i], pieces[i].bytes.data(), pieces[i].bytes.size());
    EXPECT_FALSE(in.finish_on_loop(pieces[i].position, pieces[i].bytes.size()));
  }
  in.close_on_loop();
  in.finish_on_loop(pieces[0].position, pieces[0].bytes.size());
  EXPECT_EQ(in.popped(), out.written());
}

TEST(UcxRings, AClosedSenderGivesItsMemoryBackOnceAllIsSent) {
  SendRing ring(kUcxWindow);
  EXPECT_TRUE(ring.is_done());
  for (std::uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(write(ring, i, 100));
  const auto first = ring.next();
  const auto second = ring.next();
  ring.done(second->position);
  EXPECT_FALSE(ring.is_done());
  ring.done(first->position);
  ASSERT_TRUE(ring.is_done());
  ring.free_memory();
  EXPECT_TRUE(ring.memory().empty());
  ring.release(ring.written());  // the peer's last credit
  EXPECT_EQ(ring.released(), ring.written());
}

}  // namespace
}  // namespace atl::test
