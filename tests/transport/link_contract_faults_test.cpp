// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "tests/transport/link_contract.h"

namespace atl::test {

void send_to_unclaimed(Peer& peer) {
  transport::Channel& channel = peer.channel(0);
  const auto send_one = [&] { return channel.try_send(numbered_header(0, 5000), pattern(0, 5000)); };
  wait_on_bell(peer.endpoint, transport::Bell::kCollective, "the link", send_one);
  while (send_one()) {
  }
  // On the same path after those frames, so that the peer knows the channel by then.
  wait_until("control", [&] { return peer.link().send_control_after_frames(pattern(1, 1)); });
  for (int i = 0; i < 100; ++i)
    wait_on_bell(peer.endpoint, transport::Bell::kCollective, "room after the end", send_one);
  peer.meeting.meet();
}

void close_unclaimed(Peer& peer) {
  peer.link();
  peer.observer.wait_for_controls(1);
  peer.link().close_channel({.group = 7, .index = 0, .bell = transport::Bell::kCollective});
  peer.meeting.meet();
}

namespace {

using namespace std::chrono_literals;
using transport::Bell;
using transport::Channel;
using transport::Frame;
using transport::LinkState;

constexpr auto kDeathIsSeen = 2s;

/// Waits for the next frame and returns the error of the wait.
std::optional<Error> error_of_wait(Peer& peer, Channel& channel, std::chrono::nanoseconds limit = kPatience) {
  try {
    wait_on_bell(
        peer.endpoint, Bell::kCollective, "the wait was not ended", [&] { return channel.front() != nullptr; }, limit);
  } catch (const Error& error) {
    return error;
  }
  return {};
}

void expect_kind(const std::optional<Error>& error, ErrorKind kind, const std::string& part) {
  ASSERT_TRUE(error.has_value()) << "no error, expected " << to_string(kind);
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what() << " does not contain: " << part;
}

TEST_P(LinkContract, AChannelThatOnlyThePeerHasOpenedMayBeClosed) { run(send_to_unclaimed, close_unclaimed); }

TEST_P(LinkContract, AChannelMayBeClosedBeforeThePeerOpensIt) {
  const auto sender = [](Peer& peer) {
    greet(peer, peer.channel(1));
    peer.meeting.meet();
    Channel& closed = peer.channel(0);
    for (std::uint64_t i = 0; i < 100; ++i) send(peer, closed, numbered_header(i, 5000), pattern(i, 5000));
    greet(peer, peer.channel(1));
    peer.meeting.meet();
  };
  const auto closer = [](Peer& peer) {
    const transport::ChannelId id{.group = 7, .index = 0, .bell = Bell::kCollective};
    greet(peer, peer.channel(1));
    peer.link().close_channel(id);
    peer.link().close_channel(id);
    peer.meeting.meet();
    greet(peer, peer.channel(1));
    EXPECT_THROW(peer.link().channel(id), Error);
    peer.meeting.meet();
  };
  run(sender, closer);
}

TEST_P(LinkContract, ShutdownIsReportedAsInOrderAndLosesNoFrame) {
  const auto leaver = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    for (std::uint64_t i = 0; i < 10; ++i) send(peer, channel, numbered_header(i, 500), pattern(i, 500));
    peer.endpoint.shutdown(Deadline::after(kPatience));
    EXPECT_EQ(peer.link().state(), LinkState::kClosed);
    expect_kind(error_of_wait(peer, channel), ErrorKind::kAborted, "");
    EXPECT_EQ(peer.observer.failure_count(), 0U);
    peer.endpoint.shutdown(Deadline::after(kPatience));
    peer.meeting.meet();
  };
  const auto stayer = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    const auto failure = peer.observer.wait_for_failure();
    EXPECT_TRUE(failure.closed_in_order);
    EXPECT_EQ(failure.peer, peer.other.id);
    expect_kind(failure.error, ErrorKind::kPeerLost, "rank 0");
    EXPECT_THROW(channel.try_send(numbered_header(0, 0), {}), Error);
    for (std::uint64_t i = 0; i < 10; ++i) {
      const Frame* const frame = channel.front();
      ASSERT_NE(frame, nullptr);
      EXPECT_EQ(frame->header.sequence, numbered_header(i, 500).sequence);
      channel.pop();
    }
    expect_kind(error_of_wait(peer, channel), ErrorKind::kPeerLost, "rank 0");
    peer.meeting.meet();
    EXPECT_EQ(peer.observer.failure_count(), 1U);
  };
  run(leaver, stayer);
}

TEST_P(LinkContract, AnAbortedPeerIsLost) {
  const auto aborts = [](Peer& peer) {
    greet(peer, peer.channel());
    peer.meeting.meet();
    peer.endpoint.abort();
    expect_kind(error_of_wait(peer, peer.channel()), ErrorKind::kAborted, "");
    EXPECT_EQ(peer.observer.failure_count(), 0U);
    peer.meeting.meet();
  };
  const auto waits = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    expect_kind(error_of_wait(peer, channel, kDeathIsSeen), ErrorKind::kPeerLost, "rank 0");
    EXPECT_FALSE(peer.observer.wait_for_failure().closed_in_order);
    peer.meeting.meet();
  };
  run(aborts, waits);
}

TEST_P(LinkContract, AbortWakesThisSidesOwnWaiters) {
  const auto aborts = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    std::thread waiter([&] { expect_kind(error_of_wait(peer, channel), ErrorKind::kAborted, ""); });
    auto& bell = peer.endpoint.doorbell().bell(Bell::kCollective);
    wait_until("the waiter sleeps", [&] { return bell.sleepers.load() > 0; });
    const auto started = Clock::now();
    peer.endpoint.abort();
    waiter.join();
    EXPECT_LT(Clock::now() - started, kDeathIsSeen);
    peer.meeting.meet();
  };
  const auto other = [](Peer& peer) {
    greet(peer, peer.channel());
    peer.meeting.meet();
  };
  run(aborts, other);
}

TEST_P(LinkContract, AnEndpointMayGoWhileItsPeerWaits) {
  const auto leaver = [](Peer& peer) {
    greet(peer, peer.channel());
    peer.meeting.meet();
  };  // the endpoint is destroyed after the role
  const auto waiter = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    expect_kind(error_of_wait(peer, channel), ErrorKind::kPeerLost, "rank 0");
  };
  run(leaver, waiter);
}

// Proves T-4 and T-5.
TEST_P(LinkContract, AKilledPeerIsLostAtOnceAndItsFramesAreNot) {
  if (!as_processes()) GTEST_SKIP() << "a thread cannot be killed alone";
  const auto survivor = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    peer.observer.wait_for_controls(1);
    const auto killed = Clock::now();
    ASSERT_EQ(::kill(peer.other_process, SIGKILL), 0);
    const auto failure = peer.observer.wait_for_failure(kDeathIsSeen);
    EXPECT_LT(failure.when - killed, kDeathIsSeen);
    EXPECT_FALSE(failure.closed_in_order);
    expect_kind(failure.error, ErrorKind::kPeerLost, "rank 1");
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_NE(channel.front(), nullptr);
      EXPECT_EQ(channel.front()->header.sequence, numbered_header(i, 500).sequence);
      channel.pop();
    }
    expect_kind(error_of_wait(peer, channel), ErrorKind::kPeerLost, "died");
    EXPECT_THROW(channel.try_send(numbered_header(0, 0), {}), Error);
    EXPECT_FALSE(peer.link().send_control(pattern(1, 1)));
  };
  const auto victim = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    for (std::uint64_t i = 0; i < 10; ++i) send(peer, channel, numbered_header(i, 500), pattern(i, 500));
    // Its arrival shows that the frames have arrived too: the peer may kill this process before they leave its buffers.
    wait_until("control", [&] { return peer.link().send_control_after_frames(pattern(1, 1)); });
    peer.meeting.meet();
    error_of_wait(peer, channel);
    ADD_FAILURE() << "still alive";
  };
  run_peers(PeerMode::kProcesses, options(), survivor, victim, Ending::kKilled);
}

TEST_P(LinkContract, AStoppedPeerIsSilent) {
  if (!as_processes()) GTEST_SKIP() << "a thread cannot be stopped alone";
  auto both = options();
  both[0].heartbeat = both[1].heartbeat = 1s;
  const auto survivor = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    const auto stopped = Clock::now();
    ASSERT_EQ(::kill(peer.other_process, SIGSTOP), 0);
    expect_kind(error_of_wait(peer, channel), ErrorKind::kPeerLost, "silent");
    const auto seen = Clock::now() - stopped;
    EXPECT_GE(seen, 500ms);
    EXPECT_LT(seen, 5s);
    ::kill(peer.other_process, SIGKILL);
  };
  const auto victim = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    error_of_wait(peer, channel);
  };
  run_peers(PeerMode::kProcesses, both, survivor, victim, Ending::kKilled);
}

TEST_P(LinkContract, AnIdleLinkStaysUp) {
  auto both = options();
  both[0].heartbeat = both[1].heartbeat = 1s;
  run_peers(
      GetParam().mode, both,
      [](Peer& peer) {
        greet(peer, peer.channel());
        // Nothing is sent for several heartbeats: no error may come.
        expect_kind(error_of_wait(peer, peer.channel(), 2500ms), ErrorKind::kTimeout, "");
        peer.meeting.meet();
        greet(peer, peer.channel());
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer, peer.channel());
        peer.meeting.meet();
        greet(peer, peer.channel());
        peer.meeting.meet();
      });
}

// Proves T-7.
TEST_P(LinkContract, StrangersAreRefused) {
  struct Case {
    const char* what;
    void (*change)(transport::EndpointOptions&);
  };
  const Case cases[] = {
      {"key", [](transport::EndpointOptions& options) { options.key.assign(32, std::byte{43}); }},
      {"job", [](transport::EndpointOptions& options) { options.job = "another"; }},
      {"attempt", [](transport::EndpointOptions& options) { options.attempt = 9; }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    auto both = options();
    wrong.change(both[1]);
    run_peers(
        GetParam().mode, both, [](Peer& peer) { peer.meeting.meet(); },
        [&](Peer& peer) {
          Channel& channel = peer.channel();
          expect_kind(error_of_wait(peer, channel), ErrorKind::kRefused, wrong.what);
          EXPECT_EQ(peer.observer.wait_for_failure().error.kind(), ErrorKind::kRefused);
          EXPECT_EQ(peer.link().state(), LinkState::kFailed);
          peer.meeting.meet();
        });
  }
}

TEST_P(LinkContract, APeerThatIsNotThereIsUnreachable) {
  auto both = options();
  both[0].connect_timeout = 1s;
  run_peers(
      GetParam().mode, both,
      [](Peer& peer) {
        peer.meeting.meet();
        const auto started = Clock::now();
        expect_kind(error_of_wait(peer, peer.channel()), ErrorKind::kPeerLost, "rank 1");
        EXPECT_LT(Clock::now() - started, 3s);
        peer.meeting.meet();
      },
      [](Peer& peer) {
        peer.endpoint.abort();  // no longer listens
        peer.meeting.meet();
        peer.meeting.meet();
      });
}

TEST_P(LinkContract, AForkedChildDisturbsNothing) {
  run([](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    peer.meeting.meet();
    if (peer.index == 0) {
      for (int i = 0; i < 5; ++i) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) ::_exit(0);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        greet(peer, channel);
      }
    } else {
      for (int i = 0; i < 5; ++i) greet(peer, channel);
    }
    peer.meeting.meet();
    EXPECT_EQ(peer.observer.failure_count(), 0U);
    peer.meeting.meet();
  });
}

// Proves T-5.
TEST_P(LinkContract, DeathIsSeenWhileAForkedChildLives) {
  if (!as_processes()) GTEST_SKIP() << "a thread cannot be killed alone";
  const auto survivor = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    const pid_t grandchild = static_cast<pid_t>(std::stol(peer.meeting.exchange("")));
    ASSERT_EQ(::kill(peer.other_process, SIGKILL), 0);
    expect_kind(error_of_wait(peer, channel, kDeathIsSeen), ErrorKind::kPeerLost, "rank 1");
    EXPECT_EQ(::kill(grandchild, SIGKILL), 0) << "the forked child did not outlive its parent";
  };
  const auto victim = [](Peer& peer) {
    Channel& channel = peer.channel();
    greet(peer, channel);
    const pid_t child = ::fork();
    if (child == 0) {
      while (true) ::pause();
    }
    peer.meeting.exchange(std::to_string(child));
    error_of_wait(peer, channel);
  };
  run_peers(PeerMode::kProcesses, options(), survivor, victim, Ending::kKilled);
}

}  // namespace
}  // namespace atl::test
