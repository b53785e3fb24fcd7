// SPDX-License-Identifier: Apache-2.0
// Links over several rails, each through a path that can be cut and stalled.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/peers.h"
#include "tests/support/raw_peer.h"
#include "tests/support/relay.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/link_contract.h"
#include "tests/transport/tcp/railed.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

TEST(TcpRails, AllRailsOpenCarryBytesAndAreDescribed) {
  for (const std::size_t rails : {2U, 4U}) {
    Railed pair(rails);
    const std::string all = "over " + std::to_string(rails) + " of " + std::to_string(rails) + " rails";
    wait_until("all rails", [&] { return has(*pair.links[0], all); });
    const auto is_idle = [](const auto& relay) { return relay->forwarded_bytes() <= 100'000; };
    const auto limit =
        Deadline::after(std::chrono::seconds(30));  // a rail that looked slow on a busy machine is probed again
    do {
      pair.exchange(600, 16000);
    } while (std::any_of(pair.relays.begin(), pair.relays.end(), is_idle) && !limit.expired());
    for (const auto& relay : pair.relays) EXPECT_GT(relay->forwarded_bytes(), 100'000U) << pair.links[0]->describe();
    EXPECT_EQ(pair.links[0]->describe().substr(0, 9), "tcp over ");
    EXPECT_TRUE(has(*pair.links[0], " MB/s")) << pair.links[0]->describe();
    pair.expect_no_failure();
  }
}

/// Counts the connections of this process that hold back what the network does not take yet.
int connections_with_little_unsent() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    const int fd = std::stoi(entry.path().filename());
    if (::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &size) == 0 && bytes > 0 && bytes <= 256 << 10)
      ++count;
  }
  return count;
}

TEST(TcpRails, ThereIsAWindowForEachRailAndLittleOfItInTheSocket) {
  constexpr std::size_t kWindow = std::size_t{4} << 20;
  Railed pair(2, {}, kWindow);
  Channel& channel = pair.links[0]->channel(kRailedChannel);
  const std::size_t bytes = channel.max_payload() / 2;
  for (const auto& relay : pair.relays) relay->stall();
  std::uint64_t count = 0;
  while (channel.try_send(numbered_header(count, bytes), pattern(count, bytes))) ++count;
  EXPECT_GE(count, 15U);  // 16 less what headers take
  EXPECT_EQ(channel.window_bytes(), 2 * kWindow);
  // Acknowledgements are sent after what a socket holds.
  EXPECT_EQ(connections_with_little_unsent(), 4) << "two rails, both ends of each in this process";
}

TEST(TcpRails, OneSideWithoutRailsMeansOneRail) {
  RecordingObserver observers[2];
  Endpoint first(railed(0, 4), observers[0]);
  Endpoint second(tcp_options(1), observers[1]);
  expect_connected(first, second);
  EXPECT_EQ(first.links().front()->describe().find("rails"), std::string::npos) << first.links().front()->describe();
}

TEST(TcpRails, TheSmallerNumberOfRailsCounts) {
  RecordingObserver observers[2];
  Endpoint first(railed(0, 3), observers[0]);
  Endpoint second(railed(1, 2), observers[1]);
  expect_connected(first, second);
  wait_until("two rails", [&] { return has(*first.links().front(), "over 2 of 2 rails"); });
}

// Proves T-1.
TEST(TcpRails, ARailCutMidTransferLosesNothing) {
  int round = 0;
  for (const auto how : {Relay::Cut::kEnd, Relay::Cut::kReset}) {
    for (const std::uint64_t bytes : {1ULL, 500ULL, 30'000ULL, 150'001ULL}) {
      const std::size_t rails = 2 + static_cast<std::size_t>(round) % 2;
      Railed pair(rails);
      pair.relays[static_cast<std::size_t>(round) % rails]->cut_after(bytes, how);
      ++round;
      pair.exchange(400, 16000);
      pair.expect_no_failure();
      pair.wait_for_rails(rails);  // it comes back
      pair.exchange(50, 16000);
      pair.expect_no_failure();
      if (testing::Test::HasFailure()) FAIL() << "cut after " << bytes << " bytes, " << rails << " rails";
    }
  }
}

TEST(TcpRails, ManyCutsLoseNothing) {
  Railed pair(3);
  for (int round = 0; round < 12; ++round) {
    const auto rail = static_cast<std::size_t>(round) % 3;
    pair.relays[rail]->cut(round % 2 == 0 ? Relay::Cut::kEnd : Relay::Cut::kReset);
    pair.exchange(60, 16000);
    pair.wait_for_rails(3);
  }
  pair.expect_no_failure();
}

TEST(TcpRails, AStalledRailIsGivenUpAndComesBack) {
  Railed pair(2);
  pair.exchange(20, 16000);
  pair.relays[1]->stall();
  pair.exchange(300, 16000);
  pair.expect_no_failure();
  pair.relays[1]->resume();
  pair.wait_for_rails(2);
  const std::uint64_t before = pair.relays[1]->forwarded_bytes();
  wait_until("bytes on the second rail", [&] {
    pair.exchange(100, 16000);
    return pair.relays[1]->forwarded_bytes() > before + 100'000;
  });
  pair.expect_no_failure();
}

/// A side that only receives notices it too: the credit that it sends must arrive.
TEST(TcpRails, AStalledRailHoldsUpATransferOneWayOnlyBriefly) {
  for (const std::size_t rail : {0U, 1U}) {
    Railed pair(2);
    Channel& out = pair.links[0]->channel(kRailedChannel);
    Channel& in = pair.links[1]->channel(kRailedChannel);
    const auto payload = pattern(1, 16000);
    std::uint64_t sent = 0;
    std::uint64_t got = 0;
    const auto transfer = [&](std::uint64_t until) {
      const auto step = [&] {
        while (sent < until && out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
        for (; in.front() != nullptr; in.pop()) ++got;
        return got == until;
      };
      wait_until("the transfer", step, 6s);  // less than the heartbeat
    };
    transfer(20);
    pair.relays[rail]->stall();
    transfer(100);
    pair.expect_no_failure();
  }
}

TEST(TcpRails, TheLinkFailsWithItsLastRail) {
  Railed pair(2);
  pair.exchange(10, 1000);
  // Nothing listens behind the relays any more: no rail comes back.
  pair.second.abort();
  const auto failure = pair.observers[0].wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(failure.error, "died")) << failure.error.what();
  EXPECT_THROW(pair.links[0]->channel(kRailedChannel).front(), Error);
  EXPECT_EQ(pair.observers[0].failure_count(), 1U);
}

// Proves T-6.
TEST(TcpRails, SilenceOfAllRailsIsNoticedWithinTheHeartbeat) {
  EndpointOptions quick[2] = {railed(0, 2), railed(1, 2)};
  for (auto& each : quick) each.heartbeat = 600ms;
  RecordingObserver observers[2];
  Endpoint first(quick[0], observers[0]);
  Endpoint second(quick[1], observers[1]);
  PeerAddress through = second.address();
  std::vector<std::unique_ptr<Relay>> relays;
  for (RailAddress& each : through.rails) {
    relays.push_back(std::make_unique<Relay>(each.tcp));
    each.tcp = relays.back()->address();
  }
  through.tcp = {relays.front()->address()};
  Link& link = first.link(through);
  wait_until("the rails", [&] { return has(link, "over 2 of 2 rails"); });
  for (const auto& relay : relays) relay->stall();
  const auto start = Clock::now();
  for (auto& observer : observers) {
    const auto failure = observer.wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
    EXPECT_TRUE(contains(failure.error, "silent")) << failure.error.what();
    EXPECT_LT(failure.when - start, 600ms + 1s);
  }
}

TEST(TcpRails, ShutdownDeliversWhatWasAccepted) {
  Railed pair(2, {.bytes_per_second = 10e6, .delay = 1ms, .half_duplex = false}, std::size_t{1} << 20);
  Channel& out = pair.links[0]->channel(kRailedChannel);
  const auto payload = pattern(3, 60000);
  std::uint64_t sent = 0;
  while (out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  EXPECT_GE(sent, 10U);
  const std::string last = "last";
  ASSERT_TRUE(pair.links[0]->send_control_after_frames(std::as_bytes(std::span(last.data(), last.size()))));
  std::thread leaver([&] { pair.first.shutdown(Deadline::after(kPatience)); });
  const auto failure = pair.observers[1].wait_for_failure();
  leaver.join();
  EXPECT_TRUE(failure.closed_in_order) << failure.error.what();
  EXPECT_EQ(pair.observers[1].wait_for_controls(1), std::vector<std::string>{last});
  Channel& in = pair.links[1]->channel(kRailedChannel);
  for (std::uint64_t i = 0; i < sent; ++i) {
    const Frame* frame = in.front();
    ASSERT_NE(frame, nullptr) << i << " of " << sent;
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), frame->payload.begin(), frame->payload.end())) << i;
    in.pop();
  }
  EXPECT_THROW(in.front(), Error);
  EXPECT_EQ(pair.observers[0].failure_count(), 0U);
}

TEST(TcpRails, BothSidesMayShutDownAtOnce) {
  for (int round = 0; round < 10; ++round) {
    Railed pair(2);
    pair.exchange(5, 1000);
    std::thread other([&] { pair.second.shutdown(Deadline::after(kPatience)); });
    const auto begin = Clock::now();
    pair.first.shutdown(Deadline::after(kPatience));
    other.join();
    EXPECT_LT(Clock::now() - begin, kPatience / 2) << "one side waited for what could not arrive";
  }
}

/// The side that finishes first still acknowledges what the other one has accepted.
TEST(TcpRails, BothSidesMayShutDownWhileOneStillSends) {
  Railed pair(2, {.bytes_per_second = 10e6, .delay = 1ms, .half_duplex = false}, std::size_t{4} << 20);
  Channel& out = pair.links[1]->channel(kRailedChannel);
  Channel& in = pair.links[0]->channel(kRailedChannel);
  const auto payload = pattern(3, 60000);
  std::uint64_t sent = 0;
  while (out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  EXPECT_GE(sent, 60U);
  std::thread other([&] { pair.second.shutdown(Deadline::after(kPatience)); });
  wait_until("the bye", [&] {
    std::this_thread::sleep_for(1ms);
    return !pair.links[1]->send_control({});
  });
  pair.first.shutdown(Deadline::after(kPatience));
  other.join();
  for (std::uint64_t i = 0; i < sent; ++i) {
    const Frame* frame = in.front();
    ASSERT_NE(frame, nullptr) << i << " of " << sent;
    EXPECT_EQ(frame->header.sequence, numbered_header(i, payload.size()).sequence);
    in.pop();
  }
}

TEST(TcpRails, MessagesAfterFramesArriveAfterThem) {
  Railed pair(2, {}, std::size_t{4} << 20);
  Channel& out = pair.links[0]->channel(kRailedChannel);
  Channel& in = pair.links[1]->channel(kRailedChannel);
  for (const auto& relay : pair.relays) relay->stall();
  const auto payload = pattern(1, 100'000);
  std::uint64_t sent = 0;
  while (sent < 20 && out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  const auto say = [](const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); };
  const std::string after = "after";
  const std::string ahead = "ahead";
  ASSERT_TRUE(pair.links[0]->send_control_after_frames(say(after)));
  ASSERT_TRUE(pair.links[0]->send_control(say(ahead)));
  for (const auto& relay : pair.relays) relay->resume();
  EXPECT_EQ(pair.observers[1].wait_for_controls(2), (std::vector<std::string>{ahead, after}));
  for (std::uint64_t i = 0; i < sent; ++i) {
    ASSERT_NE(in.front(), nullptr) << i << " of " << sent;
    EXPECT_EQ(in.front()->header.sequence, numbered_header(i, payload.size()).sequence);
    in.pop();
  }
}

TEST(TcpRails, StrangersCannotJoin) {
  Railed pair(2);
  const std::string address = pair.second.address().tcp.front();
  const PeerId target = pair.second.address().id;
  PeerAddress known = pair.first.address();
  EndpointOptions wrong = pair.options[0];
  wrong.key.assign(32, std::byte{9});
  EXPECT_THROW(RawPeer(address).shake_hands(wrong, known, target, 2), Error) << "another key";
  EXPECT_THROW(RawPeer(address).shake_hands(pair.options[0], silent_peer("rank 9"), target, 2), Error) << "no link";
  EXPECT_THROW(RawPeer(address).shake_hands(pair.options[0], known, target, 3), Error) << "no such rail";
  EXPECT_THROW(RawPeer(address).shake_hands(pair.options[0], known, target, 200), Error);
  // The side that makes the rails takes none.
  EXPECT_THROW(RawPeer(pair.first.address().tcp.front())
                   .shake_hands(pair.options[1], pair.second.address(), pair.first.address().id, 2),
               Error);
  pair.exchange(50, 16000);
  pair.expect_no_failure();
}

TEST(TcpRails, AChannelMayCloseWhileItsBytesComeOverSeveralRails) {
  Railed pair(2);
  Channel& out = pair.links[0]->channel(kRailedChannel);
  pair.links[1]->channel(kRailedChannel);
  const auto payload = pattern(1, 16000);
  std::uint64_t sent = 0;
  const auto send_some = [&](std::uint64_t until) {
    wait_until("frames", [&] {
      while (sent < until && out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
      return sent == until;
    });
  };
  send_some(3);
  pair.links[1]->close_channel(kRailedChannel);
  send_some(200);  // more than the window: the credit comes back
  pair.links[0]->close_channel(kRailedChannel);
  const ChannelId other{.group = 1, .index = 1, .bell = Bell::kCollective};
  Channel& next = pair.links[0]->channel(other);
  Channel& in = pair.links[1]->channel(other);
  ASSERT_TRUE(next.try_send(numbered_header(5, 10), pattern(5, 10)));
  wait_until("a frame", [&] { return in.front() != nullptr; });
  pair.expect_no_failure();
}

TEST(TcpRails, AChannelThatWasClosedLeavesNoMemory) {
  Railed pair(2);
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:atoll") != std::string::npos) ++count;
    }
    return count;
  };
  const std::size_t before = mappings();
  EXPECT_NE(before, 0U) << "of the control messages";
  for (std::uint32_t i = 0; i < 20; ++i) {
    const ChannelId id{.group = 2, .index = i, .bell = Bell::kCollective};
    Channel& in = pair.links[1]->channel(id);
    ASSERT_TRUE(pair.links[0]->channel(id).try_send(numbered_header(1, 100), pattern(1, 100)));
    wait_until("a frame", [&] { return in.front() != nullptr; });
    in.pop();
    for (Link* link : pair.links) link->close_channel(id);
  }
  wait_until("the memory", [&] { return mappings() <= before; });
  pair.expect_no_failure();
}

TEST(TcpRails, WrongSettingsAreNamed) {
  RecordingObserver observer;
  auto options = tcp_options(0);
  options.rails = "nosuch0";
  const Error unknown = error_of([&] { Endpoint(options, observer); });
  EXPECT_EQ(unknown.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(unknown, "nosuch0") && contains(unknown, "ATOLL_RAILS")) << unknown.what();
  options.rails = "17";
  EXPECT_EQ(error_of([&] { Endpoint(options, observer); }).kind(), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace atl::test
