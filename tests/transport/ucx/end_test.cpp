// SPDX-License-Identifier: Apache-2.0
// A peer that does not run, two peers that end at once, and a channel that ends before its link is up.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <thread>

#include "atoll/core/error.h"
#include "atoll/transport/handshake/acceptor.h"
#include "atoll/transport/ucx/link.h"
#include "tests/support/peers.h"
#include "tests/support/relay.h"
#include "tests/transport/link_contract.h"
#include "tests/transport/ucx/support.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using transport::Bell;
using transport::Channel;
using transport::ChannelId;
using transport::Endpoint;
using transport::listen_tcp;
using transport::PeerAddress;
using transport::TcpListener;

/// A process that does not run, while this lives.
class Stopped {
 public:
  explicit Stopped(pid_t process) : process_(process) {
    EXPECT_EQ(::kill(process, SIGSTOP), 0);
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process), &info, WSTOPPED | WNOWAIT), 0);
  }
  ~Stopped() { ::kill(process_, SIGCONT); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  const pid_t process_;
};

// Over shared memory no event reports that the peer takes frames again, so UCX has to be polled, but not all the
// time.
TEST_P(UcxLinks, APeerThatIsStoppedTakesLittleOfTheProcessor) {
  run_peers(
      PeerMode::kProcesses, options(),
      [](Peer& peer) {
        greet(peer);
        peer.meeting.meet();
        Channel& channel = peer.channel();
        std::uint64_t sent = 0;
        {
          const Stopped stopped(peer.other_process);
          while (channel.try_send(numbered_header(sent, 0), {})) ++sent;
          EXPECT_GT(sent, 500U) << "more than UCX gives to the peer at once";
          const auto started = Clock::now();
          const std::clock_t cpu = std::clock();
          std::this_thread::sleep_for(400ms);  // what is measured is how much of a time the process uses
          const double used = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
          EXPECT_LT(used, std::chrono::duration<double>(Clock::now() - started).count() / 2);
        }
        peer.meeting.exchange(std::to_string(sent));
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer);
        peer.meeting.meet();
        const std::uint64_t count = std::stoull(peer.meeting.exchange(""));
        for (std::uint64_t i = 0; i < count; ++i) {
          EXPECT_EQ(receive(peer, peer.channel()).header.sequence, numbered_header(i, 0).sequence);
          peer.channel().pop();
        }
        peer.meeting.meet();
      });
}

// The side that has nothing to send finishes first, and stays until it has answered.
TEST_P(UcxLinks, BothMayEndWhileOneStillSends) {
  auto both = options();
  for (auto& each : both) each.tcp_window_bytes = std::size_t{16} << 20;
  run_peers(
      PeerMode::kThreads, both,
      [](Peer& peer) {
        greet(peer);
        Channel& channel = peer.channel();
        const std::uint64_t count = std::stoull(peer.meeting.exchange(""));
        peer.endpoint.shutdown(Deadline::after(kPatience));
        for (std::uint64_t i = 0; i < count; ++i) {
          const auto* const frame = channel.front();
          ASSERT_NE(frame, nullptr) << i << " of " << count;
          EXPECT_EQ(frame->header.sequence, numbered_header(i, 0).sequence);
          channel.pop();
        }
      },
      [](Peer& peer) {
        greet(peer);
        Channel& channel = peer.channel();
        Channel& other = peer.channel(1);
        const auto payload = pattern(1, std::size_t{1} << 20);
        std::uint64_t sent = 0;
        while (channel.try_send(numbered_header(sent, payload.size()), payload)) ++sent;
        EXPECT_GE(sent, 10U);
        std::thread leaver([&] { peer.endpoint.shutdown(Deadline::after(kPatience)); });
        // Until the end has started here, the peer's end would be the link's.
        wait_until("the end", [&] {
          std::this_thread::sleep_for(1ms);
          try {
            return !other.try_send(numbered_header(0, 0), {});
          } catch (const Error&) {
            return true;  // it is over already
          }
        });
        peer.meeting.exchange(std::to_string(sent));
        leaver.join();
      });
}

TEST_P(UcxLinks, WhereTheStreamCarriesAllAChannelThatOnlyThePeerHasOpenedMayBeClosed) {
  if (GetParam() != std::string(kUcxMemory)) GTEST_SKIP() << "TCP leads everywhere";
  run_peers(PeerMode::kThreads, options(true), send_to_unclaimed, close_unclaimed);
}

// Frames come by UCX as soon as the peer knows both votes, perhaps before this end does.
TEST_P(UcxLinks, AChannelClosedBeforeTheLinkIsUpGivesItsCreditBack) {
  auto both = options();
  RecordingObserver observers[2];
  Endpoint sender(both[0], observers[0]);
  Endpoint receiver(both[1], observers[1]);
  // The sender's vote comes late: only the receiver connects, and what it hears takes its time.
  const TcpListener silent = listen_tcp(0, 0);
  Relay relay(sender.address().tcp.front(), {.more_delay_back = 300ms});
  PeerAddress sender_seen = sender.address();
  PeerAddress receiver_seen = receiver.address();
  sender_seen.tcp = {relay.address()};
  receiver_seen.tcp = {"127.0.0.1:" + std::to_string(silent.port)};
  const ChannelId id{.group = 1, .index = 0, .bell = Bell::kCollective};
  Channel& out = sender.link(receiver_seen).channel(id);
  Channel& in = receiver.link(sender_seen).channel(id);
  const auto payload = pattern(1, 5000);
  const auto send_one = [&] { return out.try_send(numbered_header(0, payload.size()), payload); };
  wait_on_bell(sender, Bell::kCollective, "the first frame", send_one);
  while (send_one()) {
  }
  const auto& arrived = static_cast<transport::UcxChannel&>(in).receiving();
  wait_on_bell(receiver, Bell::kCollective, "a frame", [&] { return arrived.received() != 0; });
  if (in.front() != nullptr) {
    EXPECT_EQ(receiver.link(sender_seen).state(), transport::LinkState::kUp) << "frames are seen before that";
  }
  receiver.link(sender_seen).close_channel(id);
  for (int i = 0; i < 100; ++i) wait_on_bell(sender, Bell::kCollective, "room after the end", send_one);
}

}  // namespace
}  // namespace atl::test
