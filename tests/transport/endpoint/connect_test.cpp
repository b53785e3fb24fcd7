// SPDX-License-Identifier: Apache-2.0
// Connecting endpoints: addresses, transports, crossing connections, servers that are not peers.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "atoll/transport/address.h"
#include "atoll/transport/handshake/acceptor.h"
#include "tests/support/raw_peer.h"
#include "tests/support/relay.h"
#include "tests/transport/endpoint/support.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

TEST(EndpointConnect, ConnectsOverIpv6) {
  RecordingObserver first_observer, second_observer;
  auto options = tcp_options(0);
  options.advertised_address = "::1";
  Endpoint first(options, first_observer);
  Endpoint second(options, second_observer);
  const auto address = *parse_tcp_address(second.address().tcp.front());
  ASSERT_EQ(address.family(), AF_INET6);
  const Fd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), address.get(), address.length) != 0)
    GTEST_SKIP() << "this machine has no IPv6 loopback";
  expect_connected(first, second);
  EXPECT_NE(first.links().front()->describe().find("[::1]"), std::string::npos) << first.links().front()->describe();
}

TEST(EndpointConnect, TriesAllAddressesOfAPeer) {
  RecordingObserver first_observer, second_observer, third_observer;
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  Endpoint third(tcp_options(2), third_observer);
  std::uint16_t unused = 0;
  { unused = listen_tcp(0, 0).port; }
  PeerAddress seen = second.address();
  seen.tcp = {"not an address", "127.0.0.1:" + std::to_string(unused), third.address().tcp.front(),
              second.address().tcp.front()};
  expect_connected(first, second, seen);
  EXPECT_EQ(first_observer.failure_count(), 0U);
}

TEST(EndpointConnect, APeerWithoutAnAddressIsLost) {
  RecordingObserver observer;
  Endpoint endpoint(tcp_options(0), observer);
  Link& link = endpoint.link(silent_peer("rank 9"));
  const auto failure = observer.wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(failure.error, "rank 9")) << failure.error.what();
  EXPECT_EQ(link.state(), LinkState::kFailed);
}

TEST(EndpointConnect, AServerOfAnotherKindIsNoPeer) {
  RecordingObserver observer;
  Endpoint endpoint(tcp_options(0), observer);
  const TcpListener server = listen_tcp(0, 0);
  PeerAddress peer = silent_peer("rank 9");
  peer.tcp = {"127.0.0.1:" + std::to_string(server.port)};
  endpoint.link(peer);
  Fd connection;
  wait_until("a connection",
             [&] { return static_cast<bool>(connection = Fd(::accept(server.fd.get(), nullptr, nullptr))); });
  const std::string banner = "220 mail.example ESMTP ready\r\n";
  ASSERT_EQ(::send(connection.get(), banner.data(), banner.size(), MSG_NOSIGNAL), static_cast<ssize_t>(banner.size()));
  const auto failure = observer.wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kProtocol) << failure.error.what();
}

TEST(EndpointConnect, AServerThatNeverAnswersIsGivenUpInTime) {
  RecordingObserver observer;
  auto options = tcp_options(0);
  options.connect_timeout = 400ms;
  options.heartbeat = 1s;
  Endpoint endpoint(options, observer);
  const TcpListener server = listen_tcp(0, 0);  // connects through its backlog, and says nothing
  PeerAddress peer = silent_peer("rank 9");
  peer.tcp = {"127.0.0.1:" + std::to_string(server.port)};
  const auto start = Clock::now();
  endpoint.link(peer);
  const auto failure = observer.wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(failure.error, "does not answer")) << failure.error.what();
  EXPECT_LT(failure.when - start, 400ms + 1s);
}

/// A stopped process: its kernel accepts connections, and nothing is ever sent on them.
TEST(EndpointConnect, APeerThatSaysNothingIsLostWithTheHeartbeat) {
  for (const auto transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    RecordingObserver observer;
    auto options = peer_options(transport, 0);
    options.heartbeat = 1s;
    options.connect_timeout = 20s;
    Endpoint endpoint(options, observer);
    const UnixListener here = listen_unix();
    const TcpListener there = listen_tcp(0, 0);
    PeerAddress peer = silent_peer("rank 9");
    peer.unix_name = here.name;
    peer.tcp.assign(4, "127.0.0.1:" + std::to_string(there.port));
    if (transport == TransportChoice::kShm) peer.host = endpoint.address().host;
    const auto start = Clock::now();
    endpoint.link(peer);
    const auto failure = observer.wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
    EXPECT_TRUE(contains(failure.error, "rank 9")) << failure.error.what();
    EXPECT_TRUE(contains(failure.error, "does not answer")) << failure.error.what();
    EXPECT_GE(failure.when - start, 700ms);
    EXPECT_LT(failure.when - start, options.heartbeat + 1s);
  }
}

TEST(EndpointConnect, AnAddressThatSaysNothingDoesNotHideTheNextOnes) {
  RecordingObserver first_observer, second_observer;
  auto options = tcp_options(0);
  options.heartbeat = 1s;
  options.connect_timeout = 20s;
  Endpoint first(options, first_observer);
  Endpoint second(tcp_options(1), second_observer);
  const TcpListener mute = listen_tcp(0, 0);
  PeerAddress seen = second.address();
  seen.tcp.insert(seen.tcp.begin(), 2, "127.0.0.1:" + std::to_string(mute.port));
  const auto start = Clock::now();
  expect_connected(first, second, seen);
  EXPECT_LT(Clock::now() - start, 5s);
  EXPECT_EQ(first_observer.failure_count(), 0U);
}

TEST(EndpointConnect, TransportsThatCannotMeetAreNamed) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(peer_options(TransportChoice::kShm, 0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  first.link(second.address());
  second.link(first.address());
  for (auto* observer : {&first_observer, &second_observer}) {
    const auto failure = observer->wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kUnavailable);
    EXPECT_TRUE(contains(failure.error, "ATOLL_TRANSPORT")) << failure.error.what();
  }
}

TEST(EndpointConnect, HostsDecideBetweenMemoryAndNetwork) {
  auto options = peer_options(TransportChoice::kAuto, 0);
  options.host = "left";
  RecordingObserver observers[3];
  Endpoint first(options, observers[0]);
  Endpoint same(options, observers[1]);
  options.host = "right";
  Endpoint other(options, observers[2]);
  EXPECT_EQ(first.link(same.address()).kind(), LinkKind::kShm);
  EXPECT_EQ(first.link(other.address()).kind(), LinkKind::kTcp);
  expect_connected(first, same);
  expect_connected(other, first);
}

// Each side's connection is delayed, so that both are under way when each side sees the other's.
TEST(EndpointConnect, ConnectionsThatCrossGiveOneLink) {
  for (int round = 0; round < 20; ++round) {
    RecordingObserver first_observer, second_observer;
    Endpoint first(tcp_options(0), first_observer);
    Endpoint second(tcp_options(1), second_observer);
    Relay to_first(first.address().tcp.front(),
                   {.bytes_per_second = 0, .delay = std::chrono::milliseconds(round % 4), .half_duplex = false});
    Relay to_second(second.address().tcp.front(), {.bytes_per_second = 0, .delay = 2ms, .half_duplex = false});
    PeerAddress first_seen = first.address();
    PeerAddress second_seen = second.address();
    first_seen.tcp = {to_first.address()};
    second_seen.tcp = {to_second.address()};
    first.link(second_seen);
    second.link(first_seen);
    expect_connected(first, second);
    expect_connected(second, first);
    EXPECT_EQ(first_observer.failure_count() + second_observer.failure_count(), 0U);
  }
}

TEST(EndpointConnect, OneDirectionIsEnough) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  const TcpListener mute = listen_tcp(0, 0);  // the second is not reachable
  PeerAddress seen = second.address();
  seen.tcp = {"127.0.0.1:" + std::to_string(mute.port)};
  first.link(seen);
  expect_connected(second, first);
}

/// A peer that shuts down in order is never taken for dead, at any moment of the handshake, whichever side connects.
TEST(EndpointConnect, AShutdownWhileConnectingIsNoDeath) {
  // Over TCP a peer that has gone before the connection is tried for a second.
  for (const auto& [transport, step] : {std::pair(TransportChoice::kShm, 1), std::pair(TransportChoice::kTcp, 6)}) {
    for (int i = 0; i < 60; i += step) {
      RecordingObserver stayer_observer, leaver_observer;
      Endpoint stayer(peer_options(transport, 0), stayer_observer);
      Endpoint leaver(peer_options(transport, 1), leaver_observer);
      const bool leaver_connects = i / step % 2 == 1;
      Link& link = stayer.link(leaver.address());
      if (leaver_connects) leaver.link(stayer.address());
      for (int spins = 0; spins < i * 20 && link.state() == LinkState::kConnecting; ++spins) std::this_thread::yield();
      leaver.shutdown(Deadline::after(5s));
      const auto failure = stayer_observer.wait_for_failure();
      EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
      EXPECT_FALSE(contains(failure.error, "end of file")) << failure.error.what();
      EXPECT_EQ(leaver_observer.failure_count(), 0U);
    }
  }
}

}  // namespace
}  // namespace atl::test
