// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/handshake/handshake.h"
#include "atoll/transport/tcp/parser.h"
#include "atoll/transport/tcp/reassembly.h"

// How bytes from a peer are handled, for libFuzzer and for the tests that run the same with mutated bytes. A target
// returns if the code behaved, whatever the bytes; it aborts if a promise was broken.
namespace atl::fuzz {

using Bytes = std::span<const std::byte>;

/// Runs `action`, which may throw only errors that blame the peer.
template <class Action>
void only_peer_errors(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol && error.kind() != ErrorKind::kRefused) std::abort();
  }
}

inline void address(Bytes bytes) {
  only_peer_errors([&] {
    const auto decoded = transport::PeerAddress::decode(bytes);
    const auto again = transport::PeerAddress::decode(decoded.encode());
    if (again.id != decoded.id || again.tcp != decoded.tcp || again.host != decoded.host ||
        again.rails != decoded.rails)
      std::abort();
    for (const auto& text : decoded.tcp) {
      const auto parsed = transport::parse_tcp_address(text);
      if (parsed && !transport::parse_tcp_address(to_string(*parsed))) std::abort();
    }
  });
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  static_cast<void>(transport::parse_tcp_address(text));
}

/// The first byte chooses the role and how the rest is cut.
inline void handshake(Bytes bytes) {
  using transport::Handshake;
  if (bytes.empty()) return;
  static const std::string job = "job";
  static const transport::PeerAddress self{
      .id = {.bytes = {1}}, .host = "h", .unix_name = "u", .tcp = {}, .name = "rank 0"};
  const transport::HandshakeIdentity identity{job, 0, self, std::vector<std::byte>(32), transport::LinkKind::kTcp};
  const auto choice = std::to_integer<unsigned>(bytes.front());
  const std::size_t piece = 1 + (choice >> 1);
  const bool initiator = (choice & 1U) != 0;
  Handshake subject = initiator ? Handshake::initiator(identity, {.bytes = {2}}) : Handshake::acceptor(identity);
  bytes = bytes.subspan(1);
  only_peer_errors([&] {
    while (!bytes.empty() && subject.wanted() != 0) {
      const std::size_t count = std::min({piece, bytes.size(), subject.wanted()});
      subject.receive(bytes.first(count));
      bytes = bytes.subspan(count);
    }
  });
  if (subject.take_output().size() > 2 * transport::kMaxHandshakeBytes) std::abort();
  // No peer is accepted without the key.
  if (subject.state() == Handshake::State::kProven || subject.state() == Handshake::State::kDone) std::abort();
}

/// Provides memory of exactly each frame's size, so that a byte too many is found.
class FrameMemory : public transport::tcp::MessageSink {
 public:
  static constexpr std::size_t kMaxPayload = 4096;

  std::byte* on_data(std::uint32_t channel, std::uint32_t payload_bytes) override {
    if (payload_bytes > kMaxPayload) std::abort();
    frame_ = std::make_unique<std::byte[]>(sizeof(transport::FrameHeader) + payload_bytes);
    return channel % 8 == 7 ? nullptr : frame_.get();
  }
  void on_data_complete(std::uint32_t) override {
    if (frame_ == nullptr) std::abort();
    frame_.reset();
  }
  void on_credit(std::uint32_t, std::uint64_t) override {}
  void on_open(std::uint32_t, const transport::tcp::OpenBody&) override {}
  void on_close(std::uint32_t) override {}
  void on_control(std::span<const std::byte> message) override {
    if (message.size() > transport::tcp::kMaxControlBody) std::abort();
    const std::vector<std::byte> copy(message.begin(), message.end());
  }
  void on_heartbeat(std::uint64_t) override {}
  void on_bye() override {}
  std::byte* on_segment(std::uint32_t channel, std::uint64_t position, std::uint32_t bytes) override {
    if (bytes == 0 || bytes > transport::tcp::kMaxSegment) std::abort();
    frame_ = std::make_unique<std::byte[]>(bytes);
    segment_ = {position, bytes};
    // As a channel does: repeated segments, and those that do not fit, are dropped.
    return map_.has(position, bytes) || channel % 8 == 7 ? nullptr : frame_.get();
  }
  void on_segment_complete() override {
    if (frame_ == nullptr) std::abort();
    frame_.reset();
    const std::uint64_t before = map_.end();
    map_.add(segment_.first, segment_.second);
    if (map_.end() < before || !map_.has(segment_.first, segment_.second)) std::abort();
  }
  void on_ack(std::uint64_t) override {}
  void on_probe() override {}

 private:
  std::unique_ptr<std::byte[]> frame_;
  transport::tcp::SegmentMap map_{std::uint64_t{1} << 20};
  std::pair<std::uint64_t, std::uint32_t> segment_;
};

/// The first byte chooses how the rest is cut and whether frames are filled directly.
inline void tcp_frames(Bytes bytes) {
  if (bytes.empty()) return;
  const auto choice = std::to_integer<unsigned>(bytes.front());
  const std::size_t piece = 1 + (choice >> 1);
  const bool direct = (choice & 1U) != 0;
  bytes = bytes.subspan(1);
  FrameMemory sink;
  transport::tcp::Parser parser(sink, FrameMemory::kMaxPayload);
  only_peer_errors([&] {
    while (!bytes.empty()) {
      Bytes part = bytes.first(std::min(piece, bytes.size()));
      bytes = bytes.subspan(part.size());
      const auto space = parser.direct();
      if (direct && !space.empty()) {
        const std::size_t count = std::min(space.size(), part.size());
        std::memcpy(space.data(), part.data(), count);
        parser.advance_direct(count);
        part = part.subspan(count);
      }
      parser.consume(part);
    }
  });
}

}  // namespace atl::fuzz
