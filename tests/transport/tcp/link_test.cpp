// SPDX-License-Identifier: Apache-2.0
// TCP links over a path with faults and limits.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

#include "tests/support/peers.h"
#include "tests/support/relay.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/link_contract.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

/// Two endpoints in this process; the first one reaches the second through a relay.
struct Pair {
  explicit Pair(std::chrono::milliseconds heartbeat = 10s, Relay::Path path = {}, std::size_t window = 65536)
      : options{with(0, heartbeat, window), with(1, heartbeat, window)},
        first(options[0], first_observer),
        second(options[1], second_observer),
        relay(second.address().tcp.front(), path) {
    PeerAddress through = second.address();
    through.tcp = {relay.address()};
    first_link = &first.link(through);
    wait_until("the link", [&] { return first_link->state() == LinkState::kUp && !second.links().empty(); });
    second_link = &second.link(first.address());
    wait_until("the other end", [&] { return second_link->state() == LinkState::kUp; });
  }

  static EndpointOptions with(int index, std::chrono::milliseconds heartbeat, std::size_t window) {
    EndpointOptions options = peer_options(TransportChoice::kTcp, index);
    options.heartbeat = heartbeat;
    options.tcp_window_bytes = window;
    return options;
  }

  /// Sends frames from the first to the second until `bytes` have arrived; both sides run here, in turns.
  void transfer(std::uint64_t bytes, std::size_t payload_bytes) {
    Channel& out = first_link->channel(id);
    Channel& in = second_link->channel(id);
    const auto payload = pattern(1, payload_bytes);
    std::uint64_t sent = 0;
    std::uint64_t got = 0;
    wait_until("the transfer", [&] {
      while (sent < bytes && out.try_send(numbered_header(sent, payload_bytes), payload)) sent += payload_bytes;
      while (const Frame* frame = in.front()) {
        EXPECT_EQ(frame->header.sequence, numbered_header(got, payload_bytes).sequence);
        got += frame->payload.size();
        in.pop();
      }
      return got >= bytes;
    });
  }

  const ChannelId id{.group = 1, .index = 0, .bell = Bell::kCollective};
  EndpointOptions options[2];
  RecordingObserver first_observer;
  RecordingObserver second_observer;
  Endpoint first;
  Endpoint second;
  Relay relay;
  Link* first_link = nullptr;
  Link* second_link = nullptr;
};

// Proves T-6.
TEST(TcpLink, AStalledPathIsNoticedByBothSidesWithinTheHeartbeat) {
  constexpr auto kHeartbeat = 600ms;
  Pair pair(kHeartbeat);
  pair.transfer(10000, 1000);
  pair.relay.stall();
  const auto start = Clock::now();
  for (auto* observer : {&pair.first_observer, &pair.second_observer}) {
    const auto failure = observer->wait_for_failure();
    EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
    EXPECT_NE(std::string(failure.error.what()).find("silent for 0."), std::string::npos) << failure.error.what();
    EXPECT_GE(failure.when - start, kHeartbeat / 2);
    EXPECT_LT(failure.when - start, kHeartbeat + 1s);
  }
  EXPECT_THROW(pair.first_link->channel(pair.id).try_send(FrameHeader{}, {}), Error);
  EXPECT_THROW(pair.second_link->channel(pair.id).front(), Error);
}

TEST(TcpLink, AStallWhileTheSenderIsBlockedIsNoticedToo) {
  Pair pair(600ms, {}, std::size_t{4} << 20);
  pair.relay.stall();
  Channel& out = pair.first_link->channel(pair.id);
  const auto payload = pattern(1, 100000);
  while (out.try_send(numbered_header(0, payload.size()), payload)) {
  }
  EXPECT_EQ(pair.first_observer.wait_for_failure(kPatience).error.kind(), ErrorKind::kPeerLost);
}

TEST(TcpLink, AShortStallLosesNothing) {
  Pair pair(10s);
  pair.transfer(100000, 1000);
  Channel& out = pair.first_link->channel(pair.id);
  Channel& in = pair.second_link->channel(pair.id);
  const auto payload = pattern(1, 1000);
  // An answer arrives after all credit for what was transferred, so that there is room to send into the stall.
  ASSERT_TRUE(in.try_send(numbered_header(0, payload.size()), payload));
  wait_on_bell(pair.first, Bell::kCollective, "the answer", [&] { return out.front() != nullptr; });
  out.pop();
  pair.relay.stall();
  std::uint64_t sent = 0;
  while (out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  EXPECT_GT(sent, 10U);
  pair.relay.resume();
  for (std::uint64_t i = 0; i < sent; ++i) {
    wait_on_bell(pair.second, Bell::kCollective, "a frame", [&] { return in.front() != nullptr; });
    EXPECT_EQ(in.front()->header.sequence, numbered_header(i, payload.size()).sequence);
    in.pop();
  }
  EXPECT_EQ(pair.first_observer.failure_count() + pair.second_observer.failure_count(), 0U);
}

// Proves T-4.
TEST(TcpLink, ACutPathIsNoticedAtOnceAndWhatArrivedStaysReadable) {
  for (const auto how : {Relay::Cut::kEnd, Relay::Cut::kReset}) {
    Pair pair(10s);
    Channel& out = pair.first_link->channel(pair.id);
    Channel& in = pair.second_link->channel(pair.id);
    ASSERT_TRUE(out.try_send(numbered_header(5, 100), pattern(5, 100)));
    wait_on_bell(pair.second, Bell::kCollective, "a frame", [&] { return in.front() != nullptr; });
    const auto start = Clock::now();
    pair.relay.cut(how);
    for (auto* observer : {&pair.first_observer, &pair.second_observer}) {
      const auto failure = observer->wait_for_failure();
      EXPECT_EQ(failure.error.kind(), ErrorKind::kPeerLost);
      EXPECT_NE(std::string(failure.error.what()).find("died"), std::string::npos) << failure.error.what();
      EXPECT_FALSE(failure.closed_in_order);
      EXPECT_LT(failure.when - start, 2s);
    }
    ASSERT_NE(in.front(), nullptr);
    EXPECT_EQ(in.front()->payload.size(), 100U);
    in.pop();
    EXPECT_THROW(in.front(), Error);
    EXPECT_THROW(out.front(), Error);
  }
}

TEST(TcpLink, ALongPathKeepsOrderAndContent) {
  Pair pair(10s, {.bytes_per_second = 0, .delay = 10ms, .half_duplex = false});
  const auto start = Clock::now();
  pair.transfer(400000, 10000);
  // 65536 bytes of window and 20 ms there and back.
  EXPECT_GE(Clock::now() - start, 80ms);
}

TEST(TcpLink, ASlowPathIsFilled) {
  for (const bool half_duplex : {false, true}) {
    constexpr double kRate = 20e6;
    constexpr std::uint64_t kBytes = 4'000'000;
    constexpr double kMax = 2.0 * kBytes / kRate;
    double best = 2 * kMax;
    for (int i = 0; i < 5 && best > kMax; ++i) {  // a busy machine may stall during a measurement
      Pair pair(10s, {.bytes_per_second = kRate, .delay = 200us, .half_duplex = half_duplex}, std::size_t{1} << 20);
      const auto start = Clock::now();
      pair.transfer(kBytes, 65536);
      const std::chrono::duration<double> took = Clock::now() - start;
      EXPECT_GE(took.count(), 0.9 * kBytes / kRate);
      best = std::min(best, took.count());
    }
    EXPECT_LE(best, kMax) << "the link left the path idle";
  }
}

TEST(TcpLink, ALargeFrameThatTricklesInIsNoSilence) {
  // The kernel gathers 64 KiB of it before it wakes the loop: here that takes longer than the heartbeat.
  Pair pair(1500ms, {.bytes_per_second = 30e3}, std::size_t{1} << 20);
  pair.transfer(100'000, 100'000);
  EXPECT_EQ(pair.first_observer.failure_count() + pair.second_observer.failure_count(), 0U);
}

TEST(TcpLink, ShutdownDeliversAFullQueueOverASlowPath) {
  Pair pair(10s, {.bytes_per_second = 10e6, .delay = 1ms, .half_duplex = false}, std::size_t{1} << 20);
  Channel& out = pair.first_link->channel(pair.id);
  const auto payload = pattern(3, 60000);
  std::uint64_t sent = 0;
  while (out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  EXPECT_GE(sent, 10U);
  std::thread leaver([&] { pair.first.shutdown(Deadline::after(kPatience)); });
  const auto failure = pair.second_observer.wait_for_failure();
  leaver.join();
  EXPECT_TRUE(failure.closed_in_order) << failure.error.what();
  Channel& in = pair.second_link->channel(pair.id);
  for (std::uint64_t i = 0; i < sent; ++i) {
    const Frame* frame = in.front();
    ASSERT_NE(frame, nullptr);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), frame->payload.begin(), frame->payload.end())) << i;
    in.pop();
  }
  EXPECT_THROW(in.front(), Error);
  EXPECT_EQ(pair.first_observer.failure_count(), 0U);
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The congestion controls of this process's connected TCP sockets.
std::vector<std::string> controls_in_use() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    char name[16] = {};
    socklen_t length = sizeof name - 1;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) names.emplace_back(name);
  }
  return names;
}

TEST(TcpLink, NearLinksAreNotPacedByBbr) {
  const std::string system = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  RecordingObserver first_observer, second_observer;
  Endpoint first(peer_options(TransportChoice::kTcp, 0), first_observer);
  Endpoint second(peer_options(TransportChoice::kTcp, 1), second_observer);
  expect_connected(first, second);
  const auto controls = controls_in_use();
  ASSERT_EQ(controls.size(), 2U);
  for (const std::string& control : controls) {
    EXPECT_NE(control, "bbr");
    if (system != "bbr") {
      EXPECT_EQ(control, system) << "the system's own choice is kept";
    }
  }
}

TEST(TcpLink, ControlMessagesAreBounded) {
  Pair pair(10s);
  pair.relay.stall();
  const auto message = pattern(1, kMaxControlBytes);
  std::size_t accepted = 0;
  while (pair.first_link->send_control(message)) ASSERT_LT(++accepted, 100000U);
  EXPECT_GT(accepted, 5U);
  EXPECT_THROW(pair.first_link->send_control(pattern(1, kMaxControlBytes + 1)), Error);
  pair.relay.resume();
  EXPECT_EQ(pair.second_observer.wait_for_controls(accepted).size(), accepted);
}

TEST(TcpLink, ControlMessagesMayFollowTheFramesBeforeThem) {
  Pair pair(10s, {}, std::size_t{32} << 20);
  pair.transfer(1000, 1000);
  Channel& out = pair.first_link->channel(pair.id);
  Channel& in = pair.second_link->channel(pair.id);
  pair.relay.stall();
  const auto payload = pattern(1, std::size_t{1} << 20);
  std::uint64_t sent = 0;
  while (out.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
  const auto say = [](const char* text) { return std::as_bytes(std::span(text, std::string_view(text).size())); };
  ASSERT_TRUE(pair.first_link->send_control_after_frames(say("after")));
  ASSERT_TRUE(pair.first_link->send_control(say("ahead")));
  EXPECT_THROW(pair.first_link->send_control_after_frames(pattern(1, kMaxControlBytes + 1)), Error);
  pair.relay.resume();
  EXPECT_EQ(pair.second_observer.wait_for_controls(2), (std::vector<std::string>{"ahead", "after"}));
  for (std::uint64_t i = 0; i < sent; ++i) {
    ASSERT_NE(in.front(), nullptr) << i << " of " << sent;
    EXPECT_EQ(in.front()->header.sequence, numbered_header(i, payload.size()).sequence);
    in.pop();
  }
}

TEST(TcpLink, ControlMessagesAfterFramesAreBounded) {
  Pair pair(10s);
  pair.relay.stall();
  const auto message = pattern(1, kMaxControlBytes);
  std::size_t accepted = 0;
  while (pair.first_link->send_control_after_frames(message)) ASSERT_LT(++accepted, 100000U);
  EXPECT_GT(accepted, 5U);
  pair.first_link->close_channel(pair.id);  // there is still room for what must not fail
  pair.relay.resume();
  EXPECT_EQ(pair.second_observer.wait_for_controls(accepted).size(), accepted);
  EXPECT_EQ(pair.first_observer.failure_count() + pair.second_observer.failure_count(), 0U);
}

}  // namespace
}  // namespace atl::test
