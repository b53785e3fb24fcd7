// SPDX-License-Identifier: Apache-2.0
// What a link over several rails promises, without endpoints: rails are socket pairs, and a rail may be cut behind any byte.
#include "atoll/transport/tcp/spread.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/tcp/control_reader.h"

namespace atl::transport::tcp {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kWindow = std::uint64_t{64} << 10;
constexpr std::size_t kAll = ~std::size_t{0};

/// The sending side's rails tell nothing but that a write has failed, which the tests cause.
class Deaf : public Rail::Owner {
 public:
  std::byte* on_data(Rail&, std::uint32_t, std::uint32_t) override { return nullptr; }
  void on_data_complete(Rail&) override {}
  std::byte* on_segment(Rail&, std::uint32_t, std::uint64_t, std::uint32_t) override { return nullptr; }
  void on_segment_complete(Rail&) override {}
  void on_ack(Rail&, std::uint64_t) override {}
  void on_probe(Rail&) override {}
  void on_credit(std::uint32_t, std::uint64_t) override {}
  void on_open(std::uint32_t, const OpenBody&) override {}
  void on_close(std::uint32_t) override {}
  void on_control(std::span<const std::byte>) override {}
  void on_heartbeat(std::uint64_t) override {}
  void on_bye() override {}
  void on_broken(Rail&) override {}
};

/// The receiving side: puts one channel's stream together, and the control messages.
class Receiver {
 public:
  Receiver() {
    control_ = std::make_unique<ControlReader>([this](const Prefix& prefix, std::span<const std::byte> body) {
      controls.emplace_back(reinterpret_cast<const char*>(body.data()), body.size());
      if (prefix.type == Type::kBye) controls.emplace_back("bye");
      seen_at_control.push_back(map.end());
    });
  }

  /// One rail's end.
  class End : public MessageSink {
   public:
    End(Receiver& receiver, int fd) : receiver_(receiver), fd_(fd), parser_(*this, kWindow) {}

    /// Reads what is there, at most `limit` bytes; returns how many came.
    std::size_t read(std::size_t limit) {
      std::array<std::byte, 4096> buffer;
      std::size_t got = 0;
      while (got < limit) {
        const auto count = ::recv(fd_.get(), buffer.data(), std::min(buffer.size(), limit - got), MSG_DONTWAIT);
        if (count <= 0) break;
        got += static_cast<std::size_t>(count);
        parser_.consume(std::span(buffer).first(static_cast<std::size_t>(count)));
      }
      total += got;
      return got;
    }
    Parser& parser() { return parser_; }

    std::uint64_t total = 0;
    bool has_segment = false;
    std::uint32_t channel = 0;
    std::uint64_t position = 0;
    std::uint32_t bytes = 0;

   private:
    std::byte* on_data(std::uint32_t, std::uint32_t) override { throw std::runtime_error("a whole frame"); }
    void on_data_complete(std::uint32_t) override {}
    void on_credit(std::uint32_t, std::uint64_t) override {}
    void on_open(std::uint32_t number, const OpenBody& body) override { receiver_.opened[number] = body.group; }
    void on_close(std::uint32_t) override {}
    void on_control(std::span<const std::byte>) override {}
    void on_heartbeat(std::uint64_t) override {}
    void on_bye() override {}
    std::byte* on_segment(std::uint32_t number, std::uint64_t at, std::uint32_t size) override {
      has_segment = true;
      channel = number;
      position = at;
      bytes = size;
      return receiver_.begin(number, at, size);
    }
    void on_segment_complete() override {
      has_segment = false;
      receiver_.finish(*this);
    }
    void on_ack(std::uint64_t) override {}
    void on_probe() override { ++receiver_.probes; }

    Receiver& receiver_;
    Fd fd_;
    Parser parser_;
  };

  std::byte* begin(std::uint32_t number, std::uint64_t position, std::uint32_t bytes) {
    if (number == 0) return control_->begin(position, bytes);
    EXPECT_TRUE(opened.contains(number)) << "bytes of a channel that was not opened on this or another rail";
    return map.has(position, bytes) ? nullptr : stream.data() + position;
  }
  void finish(const End& end) {
    for (End* other : ends) {
      if (other->has_segment && other->channel == end.channel && other->position == end.position) {
        other->parser().drop_rest();
      }
    }
    if (end.channel == 0) return control_->finish(end.position, end.bytes);
    if (map.has(end.position, end.bytes)) {
      ++repeated;
    } else {
      map.add(end.position, end.bytes);
    }
  }
  std::uint64_t control_released() const { return control_->released(); }

  std::map<std::uint32_t, std::uint64_t> opened;
  Bytes stream = Bytes(kWindow);
  SegmentMap map{kWindow};
  std::vector<std::string> controls;
  std::vector<std::uint64_t> seen_at_control;  // map.end() when each came
  std::vector<End*> ends;
  int repeated = 0;
  int probes = 0;

 private:
  std::unique_ptr<ControlReader> control_;
};

/// Some rails between a Spread and a Receiver.
class Bench {
 public:
  explicit Bench(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) rails_.push_back(std::make_unique<Rail>(owner_, i, 0));
    spread = std::make_unique<Spread>(rails_);
    ends.resize(count);
    receiver.ends.clear();
    for (std::size_t i = 0; i < count; ++i) connect(i);
    stream.open(7, {.group = 99, .index = 0, .bell = 0, .window_bytes = kWindow});
  }

  void connect(std::size_t rail) {
    std::array<int, 2> sockets{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
    const int small = 4096;  // so that messages leave in parts
    ::setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    stream.announced &= ~(1U << rail);
    rails_[rail]->open(Fd(sockets[0]));
    ends[rail] = std::make_unique<Receiver::End>(receiver, sockets[1]);
    list_ends();
    spread->open(*rails_[rail], {}, Clock::now());
  }

  void cut(std::size_t rail) {
    ends[rail].reset();
    list_ends();
    stream.announced &= ~(1U << rail);
    spread->close(*rails_[rail], Clock::now());
  }

  void push(std::size_t bytes, std::byte first) {
    Bytes frame(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      frame[i] = static_cast<std::byte>(std::to_integer<std::size_t>(first) + 7 * i + i / 251);
    stream.write(accepted, {std::span<const std::byte>(frame)});
    std::copy(frame.begin(), frame.end(), expected.begin() + static_cast<std::ptrdiff_t>(accepted));
    spread->push_frame(stream, accepted, bytes, Clock::now());
    accepted += whole_units(bytes);
  }

  /// Moves bytes on rail `rail`, at most `limit`, and acknowledges what was read; returns how many.
  std::size_t turn(std::size_t rail, std::size_t limit = kAll) {
    if (ends[rail] == nullptr) return 0;
    const std::size_t got = ends[rail]->read(limit);
    if (got != 0) {
      spread->control_released(receiver.control_released());
      spread->acknowledged(*rails_[rail], ends[rail]->total, Clock::now());
    }
    rails_[rail]->write_rest();
    spread->pump(Clock::now());
    return got;
  }

  void finish() {
    for (std::size_t moved = 1; moved != 0;) {
      moved = 0;
      for (std::size_t i = 0; i < rails_.size(); ++i) moved += turn(i);
    }
  }

  void expect_everything() {
    finish();
    EXPECT_EQ(receiver.map.end(), accepted);
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(accepted),
                           receiver.stream.begin()));
    EXPECT_TRUE(spread->is_idle());
  }

  Deaf owner_;
  std::vector<std::unique_ptr<Rail>> rails_;
  SendStream stream;
  std::unique_ptr<Spread> spread;
  Receiver receiver;
  std::vector<std::unique_ptr<Receiver::End>> ends;
  Bytes expected = Bytes(kWindow);
  std::uint64_t accepted = 0;

 private:
  void list_ends() {
    receiver.ends.clear();
    for (const auto& end : ends) {
      if (end != nullptr) receiver.ends.push_back(end.get());
    }
  }
};

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

/// The rail is cut when the receiver has read so many of its bytes; acknowledgements of the last ones are lost with it.
TEST(Spread, ARailCutBehindAnyByteLosesAndDoublesNothing) {
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
    EXPECT_EQ(bench.receiver.controls, std::vector<std::string>{"first"}) << "cut behind byte " << at;
    if (testing::Test::HasFailure()) FAIL() << "cut behind byte " << at;
    if (got < at) break;
  }
  EXPECT_GT(cuts, 300U);
}

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
          if (bench.accepted + whole_units(bytes) <= kWindow) bench.push(bytes, static_cast<std::byte>(step));
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

TEST(Spread, WhatFollowsFramesComesBehindThem) {
  Bench bench(3);
  for (int i = 0; i < 5; ++i) bench.push(5000, static_cast<std::byte>(i));
  ASSERT_TRUE(bench.spread->push_behind(Type::kControl, 0, text("behind"), false, Clock::now()));
  ASSERT_TRUE(bench.spread->push_control(Type::kControl, 0, text("ahead"), false, Clock::now()));
  bench.spread->push_behind(Type::kBye, 0, {}, true, Clock::now());
  bench.turn(1, 700);
  bench.cut(1);
  bench.expect_everything();
  EXPECT_EQ(bench.receiver.controls, (std::vector<std::string>{"ahead", "behind", "", "bye"}));
  ASSERT_EQ(bench.receiver.seen_at_control.size(), 3U);
  EXPECT_EQ(bench.receiver.seen_at_control[1], bench.accepted);
}

TEST(Spread, AStreamIsFreedWhenAllOfItHasArrived) {
  Bench bench(2);
  for (int i = 0; i < 5; ++i) bench.push(5000, static_cast<std::byte>(i));
  ASSERT_TRUE(bench.spread->push_behind(Type::kClose, 7, {}, true, Clock::now(), &bench.stream));
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
  std::size_t behind = 0;
  while (bench.spread->push_behind(Type::kControl, 0, large, false, Clock::now())) ASSERT_LT(++behind, 1000U);
  EXPECT_GE(behind, 10U);
  EXPECT_TRUE(bench.spread->push_behind(Type::kClose, 3, {}, true, Clock::now())) << "room for what must not fail";
  std::size_t frames = 0;
  while (bench.spread->takes_frames()) {
    bench.spread->push_frame(bench.stream, (frames % 512) * kUnit, kUnit, Clock::now());
    ASSERT_LT(++frames, 100'000U);
  }
  EXPECT_GT(frames, 1000U);
  EXPECT_FALSE(bench.spread->is_half_free());
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
