// SPDX-License-Identifier: Apache-2.0
// The fuzz targets with a fixed number of mutated messages: crashes and broken promises abort the test.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "atoll/transport/tcp/wire.h"
#include "tests/fuzz/byte_stream_target.h"
#include "tests/fuzz/rails_target.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/ucx_ring_target.h"

namespace atl::test {
namespace {

using namespace transport;
using Bytes = std::vector<std::byte>;

PeerAddress example() {
  PeerAddress address;
  address.id.bytes = {2};
  address.host = "host";
  address.unix_name = "atoll-0123";
  address.tcp = {"10.0.0.1:4711", "[fe80::1%lo]:4711"};
  address.name = "rank 3";
  address.rails = {{.tcp = "10.0.0.1:4711", .network_bits = 24, .distance = 1, .megabits = 100000},
                   {.tcp = "10.0.1.1:4711", .network_bits = 24, .distance = 3, .megabits = 100000}};
  return address;
}

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

Bytes message(tcp::Type type, std::uint32_t channel, const Bytes& body, std::size_t header_bytes = 0) {
  const tcp::Prefix prefix{
      .type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size() - header_bytes)};
  return joined({copy_of(bytes_of(prefix)), body});
}

Bytes conversation() {
  const tcp::OpenBody open{.group = 1, .index = 2, .bell = 1, .window_bytes = 65536};
  const FrameHeader header{.payload_bytes = 100};
  return joined({{std::byte{33}},
                 message(tcp::Type::kHeartbeat, 0, Bytes(8)),
                 message(tcp::Type::kOpen, 1, copy_of(bytes_of(open))),
                 message(tcp::Type::kData, 1, joined({copy_of(bytes_of(header)), Bytes(100)}), sizeof header),
                 message(tcp::Type::kCredit, 1, Bytes(8)),
                 message(tcp::Type::kControl, 0, Bytes(50)),
                 message(tcp::Type::kSegment, 2, Bytes(8 + 200), 8),
                 message(tcp::Type::kAck, 0, Bytes(8)),
                 message(tcp::Type::kProbe, 0, Bytes(30)),
                 message(tcp::Type::kClose, 1, {}),
                 message(tcp::Type::kBye, 0, {})});
}

/// The first message of an initiator to {1}, and the answer of an acceptor that is {2}.
Bytes hello() {
  const std::string job = "job";
  const PeerAddress self = example();
  auto handshake = Handshake::initiator({job, 0, self, Bytes(32), LinkKind::kTcp}, {.bytes = {1}});
  return joined({{std::byte{254}}, handshake.take_output()});
}
Bytes challenge() {
  const std::string job = "job";
  const PeerAddress one{.id = {.bytes = {1}}, .host = "h", .unix_name = "u", .tcp = {}, .name = "rank 0"};
  const PeerAddress two = example();
  auto initiator = Handshake::initiator({job, 0, one, Bytes(32), LinkKind::kTcp}, two.id);
  auto acceptor = Handshake::acceptor({job, 0, two, Bytes(32), LinkKind::kTcp});
  Bytes bytes = initiator.take_output();
  acceptor.receive(std::span(bytes).first(acceptor.wanted()));
  acceptor.receive(std::span(bytes).last(bytes.size() - 12));
  return joined({{std::byte{255}}, acceptor.take_output()});
}

Bytes mutated(Bytes bytes, std::mt19937& random) {
  const auto changes = 1 + random() % 4;
  for (std::uint32_t i = 0; i < changes && !bytes.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random() % bytes.size());
    switch (random() % 5) {
      case 0: bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(random()); break;
      case 1: bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1U << random() % 8); break;
      case 2: bytes.erase(bytes.begin() + at); break;
      case 3: bytes.insert(bytes.begin() + at, 1 + random() % 20, static_cast<std::byte>(random())); break;
      default: bytes.resize(static_cast<std::size_t>(at)); break;
    }
  }
  return bytes;
}

Bytes of_numbers(std::initializer_list<std::pair<std::uint64_t, std::size_t>> numbers) {
  Bytes all;
  for (const auto& [value, bytes] : numbers) {
    for (std::size_t i = 0; i < bytes; ++i)
      all.push_back(static_cast<std::byte>(i < sizeof value ? value >> (8 * i) : 0));
  }
  return all;
}

/// Two messages in three segments, the later ones first.
Bytes control_segments() {
  const Bytes first = message(tcp::Type::kControl, 0, Bytes(100));
  const Bytes second = message(tcp::Type::kClose, 0, {});
  Bytes padded = first;
  padded.resize(128);
  return joined({of_numbers({{1, 1}, {2, 4}, {second.size() - 1, 2}}), second, of_numbers({{1, 4}, {47, 2}}),
                 Bytes(padded.begin() + 64, padded.begin() + 112), of_numbers({{0, 4}, {63, 2}}),
                 Bytes(padded.begin(), padded.begin() + 64)});
}

/// Two frames, the second one first; then both are read.
Bytes ring_frames() {
  return of_numbers({{0, 1}, {0, 1}, {3, 3}, {64 + 10, 3}, {0, 1}, {0, 3}, {64 + 100, 3}, {1, 1}, {1, 1}, {1, 1}});
}

template <class Target>
void run(const Target& target, const std::vector<Bytes>& seeds, int rounds = 20000) {
  constexpr std::uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const auto& seed : seeds) target(seed);
  for (int i = 0; i < rounds; ++i) {
    target(mutated(seeds[random() % seeds.size()], random));
    Bytes noise(random() % 300);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    target(noise);
  }
}

TEST(MutatedBytes, Address) { run(fuzz::address, {example().encode(), PeerAddress{}.encode()}); }

// Proves T-10.
TEST(MutatedBytes, Handshake) { run(fuzz::handshake, {hello(), challenge()}); }

// Proves T-10.
TEST(MutatedBytes, TcpFrames) {
  Bytes direct = conversation();
  direct.front() = std::byte{255};
  Bytes single = conversation();
  single.front() = std::byte{0};
  run(fuzz::tcp_frames, {conversation(), direct, single});
}

TEST(MutatedBytes, ControlReader) { run(fuzz::control_reader, {control_segments()}, 2000); }

TEST(MutatedBytes, UcxRing) { run(fuzz::ucx_ring, {ring_frames()}, 2000); }

TEST(MutatedBytes, ByteStream) {
  const Bytes record = of_numbers({{0x030316, 3}, {0x1000, 2}, {1, 1}, {0, 200}});
  std::vector<Bytes> seeds;
  for (int choice = 0; choice < 8; ++choice) seeds.push_back(joined({{static_cast<std::byte>(choice)}, record}));
  run(fuzz::byte_stream, seeds, 300);
}

}  // namespace
}  // namespace atl::test
