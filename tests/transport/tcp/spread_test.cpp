// SPDX-License-Identifier: Apache-2.0
// The promises of a link over several rails, without endpoints: rails are socket pairs, and a rail may be cut after any
// byte.
#include "atoll/transport/tcp/spread.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "tests/transport/tcp/spread_bench.h"

namespace atl::transport::tcp {
namespace {

std::span<const std::byte> text(std::string_view what) { return std::as_bytes(std::span(what.data(), what.size())); }

TEST(Spread, EverythingArrivesOverAnyNumberOfRails) {
  for (std::size_t count = 1; count <= kMaxRails; ++count) {
    SCOPED_TRACE(count);
    Bench bench(count);
    for (const std::size_t bytes : {64U, 65U, 30000U, 127U, 20000U, 128U}) bench.push(bytes, std::byte{3});
    bench.expect_everything();
    EXPECT_EQ(bench.receiver.repeated, 0);
    EXPECT_EQ(bench.receiver.opened, (std::map<std::uint32_t, std::uint64_t>{{7, 99}}));
  }
}

/// The rail is cut when the receiver has read a number of its bytes; acknowledgements of the last ones are lost with
/// it.
TEST(Spread, ARailCutAfterAnyByteLosesAndDoublesNothing) {
  std::size_t cuts = 0;
  for (std::size_t at = 0;; ++at) {
    Bench bench(2);
    bench.push(100, std::byte{1});
    bench.push(700, std::byte{2});
    ASSERT_TRUE(bench.spread->push_control(Type::kControl, 0, text("first"), false, Clock::now()));
    bench.push(300, std::byte{3});
    // What was given to rail 0 alone, byte by byte.
    std::size_t got = 0;
    while (got < at) {
      const std::size_t one = bench.ends[0]->read(1);
      if (one == 0) break;
      got += one;
    }
    bench.cut(0);
    ++cuts;
    bench.expect_everything();
    EXPECT_EQ(bench.receiver.controls, std::vector<std::string>{"first"}) << "cut after byte " << at;
    if (testing::Test::HasFailure()) FAIL() << "cut after byte " << at;
    if (got < at) break;
  }
  EXPECT_GT(cuts, 300U);
}

// Proves T-1.
TEST(Spread, AnyCutsAndReconnectionsLoseAndDoubleNothing) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::size_t count = 2 + random() % 3;
    Bench bench(count);
    std::vector<std::string> said;
    for (int step = 0; step < 60; ++step) {
      const std::size_t rail = random() % count;
      switch (random() % 6) {
        case 0: {
          const std::size_t bytes = 64 + random() % 5000;
          if (bench.accepted + whole_units(bytes) <= kSpreadWindow) bench.push(bytes, static_cast<std::byte>(step));
          break;
        }
        case 1:
          said.push_back("message " + std::to_string(step));
          ASSERT_TRUE(bench.spread->push_control(Type::kControl, 0, text(said.back()), false, Clock::now()));
          break;
        case 2:
          if (bench.ends[rail] != nullptr && random() % 3 == 0) bench.cut(rail);
          break;
        case 3:
          if (bench.ends[rail] == nullptr) bench.connect(rail);
          break;
        default: bench.turn(rail, 1 + random() % 3000);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (bench.ends[i] == nullptr) bench.connect(i);
    }
    bench.expect_everything();
    EXPECT_EQ(bench.receiver.controls, said);
    if (HasFailure()) return;
  }
}

/// The peer may still read from a rail that this side has given up, at whatever moment.
TEST(Spread, ARailThatWasGivenUpMayStillDeliver) {
  for (std::size_t before = 0; before < 900; before += 13) {
    Bench bench(2);
    bench.push(800, std::byte{5});
    bench.ends[0]->read(before);
    std::unique_ptr<Receiver::End> stale = std::move(bench.ends[0]);
    bench.receiver.ends.push_back(stale.get());  // it is still there; finish() keeps the others
    bench.stream.announced &= ~1U;
    bench.spread->close(*bench.rails_[0], Clock::now());
    for (std::size_t moved = 1; moved != 0; moved = bench.turn(1, 50)) stale->read(37);
    stale->read(kAll);
    bench.expect_everything();
    bench.receiver.ends.clear();
    if (HasFailure()) FAIL() << "after " << before << " bytes";
  }
}

TEST(Spread, WhatFollowsFramesArrivesAfterThem) {
  Bench bench(3);
  for (int i = 0; i < 5; ++i) bench.push(5000, static_cast<std::byte>(i));
  ASSERT_TRUE(bench.spread->push_after_frames(Type::kControl, 0, text("after"), false, Clock::now()));
  ASSERT_TRUE(bench.spread->push_control(Type::kControl, 0, text("ahead"), false, Clock::now()));
  bench.spread->push_after_frames(Type::kBye, 0, {}, true, Clock::now());
  bench.turn(1, 700);
  bench.cut(1);
  bench.expect_everything();
  EXPECT_EQ(bench.receiver.controls, (std::vector<std::string>{"ahead", "after", "", "bye"}));
  ASSERT_EQ(bench.receiver.seen_at_control.size(), 3U);
  EXPECT_EQ(bench.receiver.seen_at_control[1], bench.accepted);
}

TEST(Spread, AStreamIsFreedWhenAllOfItHasArrived) {
  Bench bench(2);
  for (int i = 0; i < 5; ++i) bench.push(5000, static_cast<std::byte>(i));
  ASSERT_TRUE(bench.spread->push_after_frames(Type::kClose, 7, {}, true, Clock::now(), &bench.stream));
  bench.turn(1, 700);
  bench.cut(1);  // what was on its way is sent again, out of the stream
  EXPECT_TRUE(bench.stream.is_open());
  bench.expect_everything();
  EXPECT_FALSE(bench.stream.is_open());
}

TEST(Spread, BoundsHoldWhileNothingIsRead) {
  Bench bench(2);
  std::size_t controls = 0;
  const Bytes large(4096);
  while (bench.spread->push_control(Type::kControl, 0, large, false, Clock::now())) ASSERT_LT(++controls, 1000U);
  EXPECT_GE(controls, 10U);
  std::size_t accepted = 0;
  while (bench.spread->push_after_frames(Type::kControl, 0, large, false, Clock::now())) ASSERT_LT(++accepted, 1000U);
  EXPECT_GE(accepted, 10U);
  EXPECT_TRUE(bench.spread->push_after_frames(Type::kClose, 3, {}, true, Clock::now()))
      << "room for what must not fail";
  std::size_t frames = 0;
  while (bench.spread->takes_frames()) {
    bench.spread->push_frame(bench.stream, (frames % 512) * kUnit, kUnit, Clock::now());
    ASSERT_LT(++frames, 100'000U);
  }
  EXPECT_GT(frames, 1000U);
  EXPECT_FALSE(bench.spread->is_half_free());
}

TEST(Spread, AQuestionForWhichThereIsNoSegmentCountsNothing) {
  Bench bench(2);
  // Everything is read and nothing acknowledged, until no segment is left.
  const auto read = [&] {
    for (std::size_t i = 0; i < 2; ++i) {
      while (bench.ends[i]->read(kAll) != 0) bench.rails_[i]->write_rest();
    }
    bench.spread->pump(Clock::now());
  };
  for (std::uint64_t i = 0; bench.spread->takes_frames(); ++i) {
    bench.spread->push_frame(bench.stream, i % 512 * kUnit, kUnit, Clock::now());
    read();
  }
  const auto requested = bench.receiver.probes;  // for the round trip
  while (bench.spread->push_control(Type::kControl, 0, {}, true, Clock::now())) read();
  bench.spread->push_after_frames(Type::kBye, 0, {}, true, Clock::now());
  read();
  EXPECT_EQ(bench.receiver.probes, requested) << "a segment was left";
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(bench.rails_[i]->is_ready());
    EXPECT_EQ(bench.spread->scheduler().on_its_way(i), bench.rails_[i]->bytes_out());
  }
  for (std::size_t i = 0; i < 2; ++i) bench.spread->acknowledged(*bench.rails_[i], bench.ends[i]->total, Clock::now());
  bench.finish();
  EXPECT_EQ(bench.receiver.controls.back(), "bye");
}

TEST(Spread, AcknowledgementsThatCannotBeAreRefused) {
  Bench bench(2);
  bench.push(1000, std::byte{1});
  const auto kind_of = [&](std::uint64_t total) {
    try {
      bench.spread->acknowledged(*bench.rails_[0], total, Clock::now());
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of(1 << 20), ErrorKind::kProtocol);
  EXPECT_EQ(kind_of(10), ErrorKind::kInternal);
  EXPECT_EQ(kind_of(9), ErrorKind::kProtocol);
  EXPECT_THROW(bench.spread->control_released(64), Error);
}

}  // namespace
}  // namespace atl::transport::tcp
