// SPDX-License-Identifier: Apache-2.0
// What a link over several rails does with an authenticated peer that breaks the protocol: a kProtocol error, nothing
// else.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "atoll/transport/tcp/wire.h"
#include "tests/support/peers.h"
#include "tests/support/raw_peer.h"

namespace atl::test {
namespace {

using namespace transport;
using tcp::OpenBody;
using tcp::Prefix;
using tcp::Type;
using Bytes = std::vector<std::byte>;

Bytes joined(std::initializer_list<std::span<const std::byte>> parts) {
  Bytes all;
  for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// A frame as it stands in a channel's stream.
Bytes frame(std::uint64_t sequence, std::size_t payload_bytes) {
  const FrameHeader header{.payload_bytes = static_cast<std::uint32_t>(payload_bytes), .sequence = sequence};
  return joined({bytes_of(header), Bytes(payload_bytes, static_cast<std::byte>(sequence))});
}

class TcpRailsProtocol : public testing::Test {
 protected:
  TcpRailsProtocol()
      : options_(with_rails(peer_options(TransportChoice::kTcp, 0))),
        endpoint_(options_, observer_),
        raw_(endpoint_.address().tcp.front()) {
    for (const char* address : {"127.0.0.1:1", "127.0.0.2:1"}) {
      self_.rails.push_back({.tcp = address, .network_bits = 8});
    }
    raw_.shake_hands(options_, self_, endpoint_.address().id);
  }

  static EndpointOptions with_rails(EndpointOptions options) {
    options.rails = "127.0.0.1,127.0.0.2";
    return options;
  }

  static void send(RawPeer& to, Type type, std::uint32_t channel, std::span<const std::byte> body) {
    to.send(Prefix{.type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size())}, body);
  }
  void send(Type type, std::uint32_t channel, std::span<const std::byte> body) { send(raw_, type, channel, body); }
  void open(RawPeer& to) {
    const OpenBody body{.group = kRawChannel.group, .index = kRawChannel.index, .bell = 0, .window_bytes = kRawWindow};
    send(to, Type::kOpen, 1, bytes_of(body));
  }
  void open() { open(raw_); }
  static void segment(RawPeer& to, std::uint32_t channel, std::uint64_t position, std::span<const std::byte> bytes) {
    const Prefix prefix{.type = Type::kSegment, .channel = channel, .length = static_cast<std::uint32_t>(bytes.size())};
    to.send(joined({bytes_of(prefix), bytes_of(position), bytes}));
  }
  void segment(std::uint32_t channel, std::uint64_t position, std::span<const std::byte> bytes) {
    segment(raw_, channel, position, bytes);
  }

  Channel& channel() { return endpoint_.link(self_).channel(kRawChannel); }
  void expect_frame(std::uint64_t sequence, std::size_t bytes) {
    wait_on_bell(endpoint_, Bell::kCollective, "a frame", [&] { return channel().front() != nullptr; });
    const Frame& found = *channel().front();
    EXPECT_EQ(found.header.sequence, sequence);
    ASSERT_EQ(found.payload.size(), bytes);
    for (const std::byte byte : found.payload) ASSERT_EQ(byte, static_cast<std::byte>(sequence));
    channel().pop();
  }

  void expect_protocol_error(const std::string& part) {
    const auto failure = observer_.wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kProtocol) << failure.error.what();
    EXPECT_NE(std::string(failure.error.what()).find(part), std::string::npos) << failure.error.what();
    EXPECT_TRUE(raw_.wait_for_end());
    EXPECT_EQ(observer_.failure_count(), 1U);
  }

  EndpointOptions options_;
  RecordingObserver observer_;
  Endpoint endpoint_;
  PeerAddress self_ = silent_peer("rank 7");
  RawPeer raw_;
};

TEST_F(TcpRailsProtocol, SegmentsComeInAnyOrderAndMoreThanOnce) {
  open();
  open();  // each rail repeats it
  const Bytes all = joined({frame(1, 64), frame(2, 128)});
  const auto part = [&](std::size_t from, std::size_t bytes) { return std::span(all).subspan(from, bytes); };
  segment(1, 128, part(128, 192));  // the second frame
  segment(1, 128, part(128, 192));
  segment(1, 64, part(64, 64));
  EXPECT_EQ(channel().front(), nullptr);
  segment(1, 0, part(0, 64));
  expect_frame(1, 64);
  expect_frame(2, 128);
  segment(1, 0, part(0, 64));  // long gone
  segment(1, 320, frame(3, 1));
  expect_frame(3, 1);
  EXPECT_EQ(observer_.failure_count(), 0U);
}

TEST_F(TcpRailsProtocol, ASecondRailCarriesTheSameStream) {
  RawPeer other(endpoint_.address().tcp.front());
  other.shake_hands(options_, self_, endpoint_.address().id, 2);
  const Bytes all = frame(4, 1000);
  open();
  open(other);
  segment(other, 1, 512, std::span(all).subspan(512));
  // The first rail ends inside a segment, which the second then carries.
  const Prefix prefix{.type = Type::kSegment, .channel = 1, .length = 512};
  raw_.send(joined({bytes_of(prefix), bytes_of(std::uint64_t{0}), std::span(all).first(200)}));
  raw_ = RawPeer(endpoint_.address().tcp.front());  // closes the first connection
  segment(other, 1, 0, std::span(all).first(512));
  expect_frame(4, 1000);
  EXPECT_EQ(observer_.failure_count(), 0U);
}

TEST_F(TcpRailsProtocol, ControlMessagesComeInOrderOutOfAnyOrder) {
  const auto message = [](const std::string& text) {
    const Prefix prefix{.type = Type::kControl, .length = static_cast<std::uint32_t>(text.size())};
    return joined({bytes_of(prefix), std::as_bytes(std::span(text.data(), text.size()))});
  };
  segment(0, 64, message("second"));
  segment(0, 0, message("first"));
  segment(0, 64, message("second"));
  EXPECT_EQ(observer_.wait_for_controls(2), (std::vector<std::string>{"first", "second"}));
  const Prefix bye{.type = Type::kBye};
  segment(0, 128, bytes_of(bye));
  EXPECT_TRUE(observer_.wait_for_failure().closed_in_order);
  EXPECT_EQ(observer_.wait_for_controls(2).size(), 2U);
}

TEST_F(TcpRailsProtocol, WholeFramesAreNotForSeveralRails) {
  open();
  send(Type::kData, 1, {});
  raw_.send(Bytes(sizeof(FrameHeader)));
  expect_protocol_error("over several rails");
}

TEST_F(TcpRailsProtocol, BytesOfAChannelThatIsNotOpen) {
  segment(3, 0, Bytes(64));
  expect_protocol_error("channel number 3, which is not open");
}

TEST_F(TcpRailsProtocol, BytesBeyondTheCredit) {
  open();
  segment(1, kRawWindow - 64, Bytes(128));
  expect_protocol_error("does not fit");
}

TEST_F(TcpRailsProtocol, BytesBeyondTheCreditOfAReceiverThatIsBehind) {
  open();
  segment(1, 0, frame(1, 64));
  segment(1, kRawWindow, Bytes(64));  // within a window of what came, not of what was popped
  expect_protocol_error("exceeds the channel's credit");
}

TEST_F(TcpRailsProtocol, BytesAfterAChannelsEnd) {
  open();
  segment(1, 0, frame(1, 64));
  expect_frame(1, 64);
  const Prefix close{.type = Type::kClose, .channel = 1};
  segment(0, 0, bytes_of(close));
  segment(1, 0, frame(1, 64));  // once more, over a rail that was given up
  segment(1, 128, frame(2, 64));
  expect_protocol_error("128 bytes at 128 does not fit");
}

/// However many channels a link has had, a rail that fails costs a message for each one that is open.
TEST_F(TcpRailsProtocol, CreditIsSaidAgainForChannelsThatAreOpen) {
  RawPeer other(endpoint_.address().tcp.front());
  other.shake_hands(options_, self_, endpoint_.address().id, 2);
  wait_until("both rails",
             [&] { return endpoint_.link(self_).describe().find("over 2 of 2 rails") != std::string::npos; });
  for (const std::uint32_t number : {1U, 2U, 3U}) {
    const ChannelId id{.group = kRawChannel.group, .index = number, .bell = kRawChannel.bell};
    const OpenBody body{.group = id.group, .index = id.index, .bell = 0, .window_bytes = kRawWindow};
    send(Type::kOpen, number, bytes_of(body));
    segment(number, 0, frame(number, 64));
    Channel& in = endpoint_.link(self_).channel(id);
    wait_on_bell(endpoint_, Bell::kCollective, "a frame", [&] { return in.front() != nullptr; });
    in.pop();
  }
  for (const std::uint32_t number : {1U, 3U}) {
    const Prefix close{.type = Type::kClose, .channel = number};
    segment(0, number == 1 ? 0U : 64U, bytes_of(close));
  }
  const Prefix message{.type = Type::kControl};
  segment(0, 128, bytes_of(message));
  observer_.wait_for_controls(1);
  raw_ = RawPeer(endpoint_.address().tcp.front());  // closes the first connection
  std::vector<std::uint32_t> credited;
  while (credited.empty() || credited.back() != 0) {  // that of the control messages comes last
    const auto prefix = read_as<Prefix>(other.receive_exactly(sizeof(Prefix)));
    other.receive_exactly(tcp::message_bytes(prefix) - sizeof(Prefix));
    if (prefix.type == Type::kCredit) credited.push_back(prefix.channel);
  }
  EXPECT_EQ(credited, (std::vector<std::uint32_t>{2, 0}));
}

TEST_F(TcpRailsProtocol, SegmentsThatOverlap) {
  open();
  segment(1, 64, Bytes(128));
  segment(1, 128, Bytes(128));
  expect_protocol_error("does not fit");
}

/// The longer one would write over what the other one completes and this side shows.
TEST_F(TcpRailsProtocol, SegmentsThatOverlapWhileBothAreUnderWay) {
  RawPeer other(endpoint_.address().tcp.front());
  other.shake_hands(options_, self_, endpoint_.address().id, 2);
  const auto begin = [](RawPeer& to, std::uint64_t position, std::uint32_t bytes) {
    const Prefix prefix{.type = Type::kSegment, .channel = 1, .length = bytes};
    to.send(joined({bytes_of(prefix), bytes_of(position), Bytes(10)}));
  };
  open();
  open(other);
  begin(raw_, 64, 256);
  begin(other, 0, 128);
  expect_protocol_error("overlaps");
}

TEST_F(TcpRailsProtocol, SegmentsThatBeginAnywhere) {
  open();
  segment(1, 10, Bytes(64));
  expect_protocol_error("does not fit");
}

TEST_F(TcpRailsProtocol, AFrameThatIsTooLarge) {
  open();
  const FrameHeader header{.payload_bytes = kRawWindow / 4 + 1};
  segment(1, 0, bytes_of(header));
  expect_protocol_error("is too large");
}

TEST_F(TcpRailsProtocol, AChannelThatBecomesAnother) {
  open();
  const OpenBody body{.group = kRawChannel.group, .index = 77, .bell = 0, .window_bytes = kRawWindow};
  send(Type::kOpen, 1, bytes_of(body));
  expect_protocol_error("number 1 twice");
}

TEST_F(TcpRailsProtocol, AcknowledgementsOfWhatWasNeverSent) {
  send(Type::kAck, 0, bytes_of(std::uint64_t{1} << 40));
  expect_protocol_error("acknowledges");
}

TEST_F(TcpRailsProtocol, ControlOutsideItsStream) {
  send(Type::kControl, 0, Bytes(5));
  expect_protocol_error("outside channel 0");
}

TEST_F(TcpRailsProtocol, AControlStreamOfSomethingElse) {
  segment(0, 0, Bytes(64, std::byte{0x55}));
  expect_protocol_error("a control message of type");
}

TEST_F(TcpRailsProtocol, CreditForControlThatWasNeverSent) {
  send(Type::kCredit, 0, bytes_of(std::uint64_t{64}));
  expect_protocol_error("never sent");
}

TEST_F(TcpRailsProtocol, AnOlderCreditIsNoError) {
  Channel& out = channel();
  wait_on_bell(endpoint_, Bell::kCollective, "the link", [&] { return out.try_send(FrameHeader{}, {}); });
  ASSERT_TRUE(out.try_send(FrameHeader{}, {}));
  send(Type::kCredit, 1, bytes_of(std::uint64_t{128}));
  send(Type::kCredit, 1, bytes_of(std::uint64_t{64}));
  open();
  segment(1, 0, frame(1, 1));
  expect_frame(1, 1);
  send(Type::kCredit, 1, bytes_of(std::uint64_t{192}));
  expect_protocol_error("never sent");
}

/// Over one rail there are no segments.
TEST(TcpRailProtocol, SegmentsAcknowledgementsAndProbesNeedSeveralRails) {
  const auto error_after = [](Type type, std::size_t body_bytes) {
    const EndpointOptions options = peer_options(TransportChoice::kTcp, 0);
    RecordingObserver observer;
    Endpoint endpoint(options, observer);
    RawPeer raw(endpoint.address().tcp.front());
    raw.shake_hands(options, silent_peer("rank 7"), endpoint.address().id);
    const auto counted = static_cast<std::uint32_t>(body_bytes - (type == Type::kSegment ? 8 : 0));
    raw.send(Prefix{.type = type, .channel = 1, .length = counted}, Bytes(body_bytes));
    return observer.wait_for_failure().error;
  };
  for (const auto& [type, bytes] :
       {std::pair(Type::kSegment, 72), std::pair(Type::kAck, 8), std::pair(Type::kProbe, 0)}) {
    const Error error = error_after(type, static_cast<std::size_t>(bytes));
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << error.what();
    EXPECT_NE(std::string(error.what()).find("over one rail"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace atl::test
