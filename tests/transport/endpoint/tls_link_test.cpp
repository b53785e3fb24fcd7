// SPDX-License-Identifier: Apache-2.0
// TCP links inside TLS: what an eavesdropper sees and can change, and which peers are accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "atoll/core/bytes.h"
#include "tests/support/raw_peer.h"
#include "tests/support/wire_tap.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/link_contract.h"
#include "tests/transport/tcp/railed.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

constexpr std::string_view kKnown = "a pattern that only the peer may read";

EndpointOptions tls_options(int index, bool tls = true) {
  auto options = tcp_options(index);
  options.tls = tls;
  return options;
}

bool holds(const std::vector<std::byte>& bytes, std::string_view text) {
  const auto part = as_byte_span(text);
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

/// Two endpoints with a tap between; the first opens the link.
struct Tapped {
  explicit Tapped(const EndpointOptions& mine = tls_options(0), const EndpointOptions& theirs = tls_options(1))
      : first(mine, observers[0]), second(theirs, observers[1]), tap(second.address().tcp.front()) {
    seen.tcp = {tap.address()};
  }

  void open() {
    expect_connected(first, second, seen);
    links[0] = &first.link(seen);
    links[1] = &second.link(first.address());
  }

  /// Sends a frame of text from the first to the second, and returns what arrives.
  std::string carry(std::string_view text) {
    Channel& out = links[0]->channel(kRailedChannel);
    Channel& in = links[1]->channel(kRailedChannel);
    wait_on_bell(first, Bell::kCollective, "room",
                 [&] { return out.try_send(numbered_header(1, text.size()), as_byte_span(text)); });
    wait_on_bell(second, Bell::kCollective, "the frame", [&] { return in.front() != nullptr; });
    const auto payload = in.front()->payload;
    std::string got(reinterpret_cast<const char*>(payload.data()), payload.size());
    in.pop();
    return got;
  }

  RecordingObserver observers[2];
  Endpoint first;
  Endpoint second;
  WireTap tap;
  PeerAddress seen = second.address();
  Link* links[2] = {};
};

// Proves T-8.
TEST(TlsLink, AnEavesdropperReadsNothing) {
  for (const bool tls : {false, true}) {
    Tapped pair(tls_options(0, tls), tls_options(1, tls));
    pair.open();
    EXPECT_EQ(pair.carry(kKnown), kKnown);
    const auto wire = pair.tap.recorded(WireTap::Way::kToTarget);
    EXPECT_EQ(holds(wire, kKnown), !tls);
    EXPECT_EQ(holds(wire, "rank 0"), !tls) << "not even the rank";
    EXPECT_EQ(has(*pair.links[0], " in TLS"), tls) << pair.links[0]->describe();
    EXPECT_EQ(pair.observers[0].failure_count() + pair.observers[1].failure_count(), 0U);
  }
}

// Proves T-8.
TEST(TlsLink, AChangedByteIsAnErrorThatNamesThePeer) {
  for (const auto way : {WireTap::Way::kToTarget, WireTap::Way::kFromTarget}) {
    Tapped pair;
    pair.open();
    const std::size_t reader = way == WireTap::Way::kToTarget ? 1 : 0;
    pair.tap.flip(way, 30);
    pair.links[1 - reader]->send_control(as_byte_span("a message"));
    const auto failure = pair.observers[reader].wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kProtocol);
    EXPECT_TRUE(contains(failure.error, "changed on the way")) << failure.error.what();
    EXPECT_TRUE(contains(failure.error, reader == 1 ? "rank 0" : "rank 1")) << failure.error.what();
    EXPECT_FALSE(failure.closed_in_order);
    const auto other = pair.observers[1 - reader].wait_for_failure();
    EXPECT_TRUE(contains(other.error, reader == 1 ? "rank 1" : "rank 0")) << other.error.what();
  }
}

TEST(TlsLink, AByteChangedInTheHandshakeOpensNothing) {
  for (const std::uint64_t at : {5U, 60U, 150U, 300U}) {
    Tapped pair;
    pair.tap.flip(WireTap::Way::kToTarget, at);
    Link& link = pair.first.link(pair.seen);
    const auto failure = pair.observers[0].wait_for_failure();
    EXPECT_TRUE(contains(failure.error, "rank 1")) << at << ": " << failure.error.what();
    EXPECT_EQ(link.state(), LinkState::kFailed) << at;
    EXPECT_TRUE(pair.second.links().empty()) << at;
  }
}

TEST(TlsLink, AnotherKeyIsRefused) {
  auto other = tls_options(1);
  other.key.assign(32, std::byte{7});
  Tapped pair(tls_options(0), other);
  pair.first.link(pair.seen);
  const auto failure = pair.observers[0].wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kRefused) << failure.error.what();
  EXPECT_TRUE(contains(failure.error, "rank 1")) << failure.error.what();
  EXPECT_TRUE(contains(failure.error, "does not hold this key")) << failure.error.what();
  EXPECT_TRUE(contains(failure.error, "ATOLL_KEY_FILE")) << failure.error.what();
  EXPECT_TRUE(pair.second.links().empty());
}

TEST(TlsLink, OneSideInClearIsNoPeer) {
  for (const bool tls : {false, true}) {
    Tapped pair(tls_options(0, tls), tls_options(1, !tls));
    pair.first.link(pair.seen);
    const auto failure = pair.observers[0].wait_for_failure();
    EXPECT_TRUE(contains(failure.error, "rank 1")) << failure.error.what();
    // The side with TLS reports it in its own log only; a group compares ATOLL_TLS beforehand.
    EXPECT_TRUE(contains(failure.error, tls ? "ATOLL_TLS" : "during the handshake")) << failure.error.what();
    EXPECT_TRUE(pair.second.links().empty());
    EXPECT_FALSE(holds(pair.tap.recorded(WireTap::Way::kFromTarget), "rank 1"));
  }
}

TEST(TlsLink, ARecordedConnectionIsNotTakenAgain) {
  Tapped pair;
  pair.open();
  EXPECT_EQ(pair.carry(kKnown), kKnown);
  const auto recorded = pair.tap.recorded(WireTap::Way::kToTarget);
  for (int i = 0; i < 2; ++i) {
    RawPeer again(pair.second.address().tcp.front());
    again.send(recorded);
    EXPECT_TRUE(again.wait_for_end());
  }
  EXPECT_EQ(pair.second.links().size(), 1U);
  EXPECT_EQ(pair.carry("and goes on"), "and goes on");
  EXPECT_EQ(pair.observers[1].failure_count(), 0U);
}

/// In clear the challenge has a new number each time.
TEST(ClearLink, ARecordedConnectionIsNotTakenAgain) {
  auto fresh = std::make_unique<Tapped>(tls_options(0, false), tls_options(1, false));
  fresh->open();
  const auto recorded = fresh->tap.recorded(WireTap::Way::kToTarget);
  fresh->first.abort();
  RawPeer again(fresh->second.address().tcp.front());
  again.send(recorded);
  EXPECT_TRUE(again.wait_for_end());
  EXPECT_EQ(fresh->second.links().size(), 1U);
}

TEST(TlsLink, AnUnfinishedHandshakeDelaysNoOtherPeer) {
  Tapped pair;
  pair.open();
  const auto recorded = pair.tap.recorded(WireTap::Way::kToTarget);
  RecordingObserver observer;
  Endpoint third(tls_options(2), observer);
  for (const std::size_t part : {std::size_t{1}, std::size_t{6}, std::size_t{100}}) {
    RawPeer started(third.address().tcp.front());
    started.send(std::span(recorded).first(part));
    expect_connected(pair.first, third);
  }
  EXPECT_EQ(observer.failure_count(), 0U);
}

TEST(TlsLink, EveryRailIsInTls) {
  RecordingObserver observers[2];
  EndpointOptions options[2] = {railed(0, 2), railed(1, 2)};
  for (auto& each : options) each.tls = true;
  Endpoint first(options[0], observers[0]);
  Endpoint second(options[1], observers[1]);
  PeerAddress seen = second.address();
  std::vector<std::unique_ptr<WireTap>> taps;
  for (RailAddress& each : seen.rails) {
    taps.push_back(std::make_unique<WireTap>(each.tcp));
    each.tcp = taps.back()->address();
  }
  seen.tcp = {taps.front()->address()};
  expect_connected(first, second, seen);
  Link& link = first.link(seen);
  wait_until("both rails", [&] { return has(link, "over 2 of 2 rails"); });
  Channel& out = link.channel(kRailedChannel);
  Channel& in = second.link(first.address()).channel(kRailedChannel);
  std::string text;
  while (text.size() < 16000) text += kKnown;
  const auto has_passed = [](const auto& tap) { return tap->passed(WireTap::Way::kToTarget) > 100'000; };
  wait_until("bytes on both rails", [&] {
    out.try_send(numbered_header(1, text.size()), as_byte_span(text));
    for (; in.front() != nullptr; in.pop()) EXPECT_EQ(in.front()->payload.size(), text.size());
    return std::all_of(taps.begin(), taps.end(), has_passed);
  });
  for (const auto& tap : taps) EXPECT_FALSE(holds(tap->recorded(WireTap::Way::kToTarget), kKnown));
  EXPECT_EQ(observers[0].failure_count() + observers[1].failure_count(), 0U);
}

TEST(TlsLink, NeedsAKeyFromTheStart) {
  RecordingObserver observer;
  auto options = tls_options(0);
  options.key.clear();
  const Error error = error_of([&] { Endpoint endpoint(options, observer); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(contains(error, "ATOLL_KEY_FILE")) << error.what();
}

TEST(TlsLink, DoesNotGoWithUcx) {
  RecordingObserver observer;
  auto options = tls_options(0);
  options.transport = TransportChoice::kUcx;
  const Error error = error_of([&] { Endpoint endpoint(options, observer); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(contains(error, "ATOLL_TRANSPORT=ucx with ATOLL_TLS=1")) << error.what();
}

TEST(TlsLink, SharedMemoryStaysAsItIs) {
  RecordingObserver observers[2];
  EndpointOptions options[2] = {peer_options(TransportChoice::kAuto, 0), peer_options(TransportChoice::kAuto, 1)};
  for (auto& each : options) each.tls = true;
  Endpoint first(options[0], observers[0]);
  Endpoint second(options[1], observers[1]);
  expect_connected(first, second);
  EXPECT_EQ(first.links().front()->kind(), LinkKind::kShm);
}

}  // namespace
}  // namespace atl::test
