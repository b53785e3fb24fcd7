// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/tcp/reassembly.h"
#include "atoll/transport/tcp/spread.h"

// Both halves of a link over several rails without endpoints: rails are socket pairs.
namespace atl::transport::tcp {

using Bytes = std::vector<std::byte>;

inline constexpr std::uint64_t kSpreadWindow = std::uint64_t{64} << 10;
inline constexpr std::size_t kAll = ~std::size_t{0};

/// Ignores everything from the sending side's rails; the tests themselves cause writes to fail.
class Deaf : public MessageSink {
 public:
  std::byte* on_data(std::uint32_t, std::uint32_t) override { return nullptr; }
  void on_data_complete(std::uint32_t) override {}
  std::byte* on_segment(std::uint32_t, std::uint64_t, std::uint32_t) override { return nullptr; }
  void on_segment_complete() override {}
  void on_ack(std::uint64_t) override {}
  void on_probe() override {}
  void on_credit(std::uint32_t, std::uint64_t) override {}
  void on_open(std::uint32_t, const OpenBody&) override {}
  void on_close(std::uint32_t) override {}
  void on_control(std::span<const std::byte>) override {}
  void on_heartbeat(std::uint64_t) override {}
  void on_bye() override {}
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
    End(Receiver& receiver, int fd) : receiver_(receiver), fd_(fd), parser_(*this, kSpreadWindow) {}

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
  Bytes stream = Bytes(kSpreadWindow);
  SegmentMap map{kSpreadWindow};
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
    for (std::size_t i = 0; i < count; ++i)
      rails_.push_back(std::make_unique<Rail>(
          deaf_, [](Rail&) {}, i, 0));
    spread = std::make_unique<Spread>(rails_);
    ends.resize(count);
    receiver.ends.clear();
    for (std::size_t i = 0; i < count; ++i) connect(i);
    stream.open(7, {.group = 99, .index = 0, .bell = 0, .window_bytes = kSpreadWindow});
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

  Deaf deaf_;
  std::vector<std::unique_ptr<Rail>> rails_;
  SendStream stream;
  std::unique_ptr<Spread> spread;
  Receiver receiver;
  std::vector<std::unique_ptr<Receiver::End>> ends;
  Bytes expected = Bytes(kSpreadWindow);
  std::uint64_t accepted = 0;

 private:
  void list_ends() {
    receiver.ends.clear();
    for (const auto& end : ends) {
      if (end != nullptr) receiver.ends.push_back(end.get());
    }
  }
};

}  // namespace atl::transport::tcp
