// SPDX-License-Identifier: Apache-2.0
// What a TCP link does with an authenticated peer that breaks the protocol: a kProtocol error, nothing else.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/tcp/wire.h"
#include "tests/support/peers.h"
#include "tests/support/raw_peer.h"

namespace atl::test {
namespace {

using namespace transport;
using tcp::OpenBody;
using tcp::Prefix;
using tcp::Type;

class TcpProtocol : public testing::Test {
 protected:
  TcpProtocol()
      : options_(peer_options(TransportChoice::kTcp, 0)),
        endpoint_(options_, observer_),
        raw_(endpoint_.address().tcp.front()) {
    raw_.shake_hands(options_, self_, endpoint_.address().id);
  }

  void send(Type type, std::uint32_t channel, std::span<const std::byte> body) {
    raw_.send(Prefix{.type = type, .channel = channel, .length = static_cast<std::uint32_t>(body.size())}, body);
  }
  void open(std::uint32_t number, const OpenBody& body) { send(Type::kOpen, number, bytes_of(body)); }
  void open() {
    open(1, {.group = kRawChannel.group, .index = kRawChannel.index, .bell = 0, .window_bytes = kRawWindow});
  }
  void send_frame(std::uint32_t channel, std::size_t payload_bytes, std::optional<std::uint32_t> stated = {}) {
    const auto bytes = static_cast<std::uint32_t>(payload_bytes);
    raw_.send(bytes_of(Prefix{.type = Type::kData, .channel = channel, .length = bytes}));
    raw_.send(bytes_of(FrameHeader{.payload_bytes = stated.value_or(bytes)}));
    raw_.send(std::vector<std::byte>(payload_bytes));
  }

  void expect_protocol_error(const std::string& part) {
    const auto failure = observer_.wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kProtocol) << failure.error.what();
    EXPECT_NE(std::string(failure.error.what()).find(part), std::string::npos) << failure.error.what();
    EXPECT_NE(std::string(failure.error.what()).find("rank 7"), std::string::npos) << failure.error.what();
    EXPECT_FALSE(failure.closed_in_order);
    EXPECT_TRUE(raw_.wait_for_end());
    EXPECT_EQ(observer_.failure_count(), 1U);
  }

  EndpointOptions options_;
  RecordingObserver observer_;
  Endpoint endpoint_;
  PeerAddress self_ = silent_peer("rank 7");
  RawPeer raw_;
};

TEST_F(TcpProtocol, AWellBehavedPeerIsUnderstood) {
  open();
  send_frame(1, 100);
  send_frame(1, 0);
  Channel& channel = endpoint_.link(self_).channel(kRawChannel);
  wait_on_bell(endpoint_, Bell::kCollective, "a frame", [&] { return channel.front() != nullptr; });
  EXPECT_EQ(channel.front()->payload.size(), 100U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(channel.front()->payload.data()) % 64, 0U);
  channel.pop();
  wait_on_bell(endpoint_, Bell::kCollective, "an empty frame", [&] { return channel.front() != nullptr; });
  EXPECT_EQ(channel.front()->payload.size(), 0U);
  send(Type::kBye, 0, {});
  const auto failure = observer_.wait_for_failure();
  EXPECT_TRUE(failure.closed_in_order);
  EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
}

TEST_F(TcpProtocol, WrongFirstBytes) {
  raw_.send(std::vector<std::byte>(64, std::byte{0x55}));
  expect_protocol_error("wrong bytes");
}

TEST_F(TcpProtocol, AFrameOnAChannelThatIsNotOpen) {
  send_frame(3, 10);
  expect_protocol_error("channel number 3, which is not open");
}

TEST_F(TcpProtocol, AFrameAfterTheChannelsEnd) {
  open();
  send(Type::kClose, 1, {});
  send_frame(1, 10);
  expect_protocol_error("channel number 1, which is not open");
}

TEST_F(TcpProtocol, AFrameLargerThanTheWindowAllows) {
  open();
  send_frame(1, kRawWindow / 4 + 1);
  expect_protocol_error("exceeds the channel's credit");
}

// Proves T-3.
TEST_F(TcpProtocol, MoreFramesThanCredit) {
  open();
  for (std::uint64_t sent = 0; sent <= kRawWindow; sent += footprint(kRawWindow / 8)) send_frame(1, kRawWindow / 8);
  expect_protocol_error("exceeds the channel's credit");
}

TEST_F(TcpProtocol, AHeaderThatContradictsThePrefix) {
  open();
  send_frame(1, 100, 5000);
  expect_protocol_error("has a header that states 5000");
}

TEST_F(TcpProtocol, AChannelOpenedTwice) {
  open();
  open(2, {.group = kRawChannel.group, .index = kRawChannel.index, .bell = 0, .window_bytes = kRawWindow});
  expect_protocol_error("opened twice");
}

TEST_F(TcpProtocol, ANumberUsedTwice) {
  open();
  open(1, {.group = kRawChannel.group, .index = 99, .bell = 0, .window_bytes = kRawWindow});
  expect_protocol_error("number 1 twice");
}

TEST_F(TcpProtocol, WindowsThatCannotBe) {
  open(1, {.group = 1, .index = 1, .bell = 0, .window_bytes = kRawWindow + 1});
  expect_protocol_error("a window of 65537 bytes");
}

TEST_F(TcpProtocol, BellsThatCannotBe) {
  open(1, {.group = 1, .index = 1, .bell = 2, .window_bytes = kRawWindow});
  expect_protocol_error("bell 2");
}

TEST_F(TcpProtocol, TooManyChannels) {
  std::vector<std::byte> many;
  for (std::uint32_t number = 1; number <= kMaxUnclaimedChannels + 1; ++number) {
    const Prefix prefix{.type = Type::kOpen, .channel = number, .length = sizeof(OpenBody)};
    const OpenBody body{.group = number, .index = 0, .bell = 0, .window_bytes = kRawWindow};
    for (const auto part : {bytes_of(prefix), bytes_of(body)}) many.insert(many.end(), part.begin(), part.end());
  }
  raw_.send(many);
  expect_protocol_error("too many channels");
}

TEST_F(TcpProtocol, ChannelsThatWereClosedAreNotTooMany) {
  transport::Link& link = endpoint_.link(self_);
  Channel& channel = link.channel(kRawChannel);
  open();
  std::uint32_t number = 1;
  for (int round = 0; round < 2; ++round) {
    std::vector<ChannelId> opened;
    for (std::uint32_t i = 0; i < kMaxUnclaimedChannels - 1; ++i) {
      opened.push_back({.group = 1000 + ++number, .index = 0, .bell = Bell::kCollective});
      open(number, {.group = opened.back().group, .index = 0, .bell = 0, .window_bytes = kRawWindow});
    }
    send_frame(1, 0);  // after all of them
    wait_on_bell(endpoint_, Bell::kCollective, "a frame", [&] { return channel.front() != nullptr; });
    channel.pop();
    for (const ChannelId& id : opened) link.close_channel(id);
  }
  EXPECT_EQ(observer_.failure_count(), 0U);
}

TEST_F(TcpProtocol, CreditForWhatWasNeverSent) {
  Channel& channel = endpoint_.link(self_).channel(kRawChannel);
  wait_on_bell(endpoint_, Bell::kCollective, "the link", [&] { return channel.try_send(FrameHeader{}, {}); });
  send(Type::kCredit, 1, bytes_of(std::uint64_t{65}));
  expect_protocol_error("never sent");
}

TEST_F(TcpProtocol, CreditForAChannelThatIsNot) {
  send(Type::kCredit, 9, bytes_of(std::uint64_t{0}));
  expect_protocol_error("never opened");
}

TEST_F(TcpProtocol, AnEndInTheMiddleOfAFrameIsALostPeer) {
  open();
  send_frame(1, 8);
  raw_.send(bytes_of(Prefix{.type = Type::kData, .channel = 1, .length = 1000}));
  Channel& channel = endpoint_.link(self_).channel(kRawChannel);
  wait_on_bell(endpoint_, Bell::kCollective, "a frame", [&] { return channel.front() != nullptr; });
  raw_ = RawPeer(endpoint_.address().tcp.front());  // closes the first connection
  const auto failure = observer_.wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
  EXPECT_NE(std::string(failure.error.what()).find("died"), std::string::npos) << failure.error.what();
  channel.pop();
  EXPECT_THROW(channel.front(), Error) << "the frame that was cut off must not appear";
}

}  // namespace
}  // namespace atl::test
