// SPDX-License-Identifier: Apache-2.0
// What the contract of all links does not cover: agreement and fallback, death in the middle of a transfer, many ends,
// and messages from memory to memory.
#include "atoll/transport/ucx/link.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/core/log.h"
#include "atoll/transport/endpoint/impl.h"
#include "tests/support/peers.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/link_contract.h"
#include "tests/transport/ucx/support.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using transport::Channel;
using transport::DirectBuffer;
using transport::DirectPort;
using transport::EndpointOptions;
using transport::LinkKind;
using transport::LinkState;
using transport::PeerAddress;
using transport::TransportChoice;
using transport::UcxReach;

class WarningRecorder : public LogSink {
 public:
  WarningRecorder() { set_log_sink(this); }
  ~WarningRecorder() override { set_log_sink(nullptr); }
  void write(LogLevel level, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    if (level >= LogLevel::kWarning) lines_.emplace_back(message);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

INSTANTIATE_TEST_SUITE_P(Over, UcxLinks, testing::Values(kUcxMemory, kUcxNetwork), [](const auto& of) {
  return std::string(of.param == std::string(kUcxNetwork) ? "Network" : "Memory");
});

TEST_P(UcxLinks, SayWhatCarriesTheirFrames) {
  run_peers(
      PeerMode::kThreads, options(),
      [](Peer& peer) {
        greet(peer);
        const std::string text = peer.link().describe();
        const bool memory = text.find("posix") != std::string::npos || text.find("sysv") != std::string::npos;
        EXPECT_EQ(memory, GetParam() == std::string(kUcxMemory)) << text;
        EXPECT_EQ(text.substr(0, 4), "ucx ");
        EXPECT_NE(text.find(", beside tcp 127.0.0.1:"), std::string::npos) << text;
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer);
        peer.meeting.meet();
      });
}

// Shared memory does not lead to another host: each end sees that by itself, both use the stream, and say so.
TEST_P(UcxLinks, WhereUcxDoesNotLeadTheStreamCarriesAll) {
  if (GetParam() != std::string(kUcxMemory)) GTEST_SKIP() << "TCP leads everywhere";
  WarningRecorder warnings;
  const auto role = [](Peer& peer) {
    Channel& before = peer.channel(1);
    greet(peer);
    EXPECT_EQ(peer.link().kind(), LinkKind::kTcp);
    EXPECT_EQ(peer.link().direct(), nullptr);
    const std::string text = peer.link().describe();
    EXPECT_EQ(text.find("tcp 127.0.0.1:"), 0U) << text;
    EXPECT_NE(text.find("not UCX: "), std::string::npos) << text;
    for (Channel* const channel : {&before, &peer.channel(2)}) {
      for (std::uint64_t i = 0; i < 50; ++i) {
        send(peer, *channel, numbered_header(i, channel->max_payload()), pattern(i, channel->max_payload()));
        const auto& frame = receive(peer, *channel);
        EXPECT_EQ(frame.header.sequence, numbered_header(i, 0).sequence);
        channel->pop();
      }
    }
    wait_until("control", [&] { return peer.link().send_control(pattern(1, transport::kMaxControlBytes)); });
    wait_until("control", [&] { return peer.link().send_control_after_frames(pattern(1, 3)); });
    EXPECT_EQ(peer.observer.wait_for_controls(2)[0].size(), transport::kMaxControlBytes);
    peer.link().close_channel({.group = 7, .index = 2, .bell = transport::Bell::kCollective});
    peer.meeting.meet();
    EXPECT_EQ(peer.observer.failure_count(), 0U);
    peer.meeting.meet();
  };
  run_peers(PeerMode::kThreads, options(true), role, role);
  ASSERT_EQ(warnings.lines().size(), 2U);
  EXPECT_NE(warnings.lines()[0].find("UCX cannot serve the link to rank "), std::string::npos) << warnings.lines()[0];
}

TEST_P(UcxLinks, AFallenBackLinkEndsInOrderToo) {
  if (GetParam() != std::string(kUcxMemory)) GTEST_SKIP() << "TCP leads everywhere";
  WarningRecorder warnings;
  run_peers(
      PeerMode::kThreads, options(true),
      [](Peer& peer) {
        greet(peer);
        peer.endpoint.shutdown(Deadline::after(kPatience));
        EXPECT_EQ(peer.link().state(), LinkState::kClosed);
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer);
        EXPECT_TRUE(peer.observer.wait_for_failure().closed_in_order);
        peer.meeting.meet();
      });
}

void kill_while_sending(const std::vector<EndpointOptions>& options, bool victim_sends) {
  const auto keep_sending = [](Peer& peer) {
    Channel& channel = peer.channel();
    const auto payload = pattern(1, channel.max_payload());
    for (std::uint64_t i = 0;; ++i) send(peer, channel, numbered_header(i, payload.size()), payload);
  };
  const auto keep_receiving = [](Peer& peer) {
    Channel& channel = peer.channel();
    for (;;) {
      receive(peer, channel);
      channel.pop();
    }
  };
  const auto survivor = [&](Peer& peer) {
    greet(peer);
    const auto payload = pattern(2, peer.channel().max_payload());
    for (std::uint64_t i = 0; i < 200; ++i) {
      if (victim_sends) {
        receive(peer, peer.channel());
        peer.channel().pop();
      } else {
        send(peer, peer.channel(), numbered_header(i, payload.size()), payload);
      }
    }
    ASSERT_EQ(::kill(peer.other_process, SIGKILL), 0);
    const auto killed = Clock::now();
    try {
      victim_sends ? keep_receiving(peer) : keep_sending(peer);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_NE(std::string(error.what()).find("died"), std::string::npos) << error.what();
    }
    EXPECT_LT(Clock::now() - killed, 2s);
    EXPECT_FALSE(peer.observer.wait_for_failure().closed_in_order);
  };
  const auto victim = [&](Peer& peer) {
    greet(peer);
    victim_sends ? keep_sending(peer) : keep_receiving(peer);
  };
  run_peers(PeerMode::kProcesses, options, survivor, victim, Ending::kKilled);
}

TEST_P(UcxLinks, AReceiverKilledInTheMiddleIsLost) { kill_while_sending(options(), false); }

TEST_P(UcxLinks, ASenderKilledInTheMiddleIsLost) { kill_while_sending(options(), true); }

TEST_P(UcxLinks, BeginAndEndAgainAndAgain) {
  for (int round = 0; round < 15; ++round) {
    const bool in_order = round % 2 == 0;
    const auto role = [&](Peer& peer) {
      greet(peer);
      Channel& channel = peer.channel();
      // Ends with frames that were not read.
      for (std::uint64_t i = 0; i < 5; ++i) send(peer, channel, numbered_header(i, 9000), pattern(i, 9000));
      peer.meeting.meet();
      const auto started = Clock::now();
      in_order ? peer.endpoint.shutdown(Deadline::after(kPatience)) : peer.endpoint.abort();
      EXPECT_LT(Clock::now() - started, kPatience) << "the end in order came only when time was out";
    };
    run_peers(PeerMode::kThreads, options(), role, role);
  }
}

/// Waits for the end of direct messages.
class Outcomes {
 public:
  DirectPort::Done done(std::size_t index) {
    return [this, index](const Error* problem) {
      const std::lock_guard lock(mutex_);
      if (outcomes_.size() <= index) outcomes_.resize(index + 1);
      EXPECT_FALSE(outcomes_[index].has_value()) << "told twice";
      outcomes_[index] = problem != nullptr ? problem->kind() : std::optional<ErrorKind>();
      ++count_;
      changed_.notify_all();
    };
  }
  /// The error of each; nothing where all went well.
  std::vector<std::optional<ErrorKind>> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return count_ >= count; })) << count_ << " of " << count;
    return outcomes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<ErrorKind>> outcomes_;
  std::size_t count_ = 0;
};

DirectBuffer host_buffer(std::vector<std::byte>& bytes) {
  return {bytes.data(), bytes.size(), transport::MemoryKind::kHost};
}

TEST_P(UcxLinks, DirectMessagesGoFromPlaceToPlace) {
  constexpr std::size_t kSizes[] = {1, 64, 70'000, std::size_t{8} << 20};
  const auto role = [&](Peer& peer) {
    greet(peer);
    DirectPort* const port = peer.link().direct();
    ASSERT_NE(port, nullptr);
    EXPECT_TRUE(port->reaches(transport::MemoryKind::kHost));
    Outcomes outcomes;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    for (const std::size_t bytes : kSizes) {
      out.push_back(pattern(bytes + static_cast<std::uint64_t>(peer.index), bytes));
      in.emplace_back(bytes);
    }
    port->remember(host_buffer(out.back()));
    // One side posts its receives first, the other one last; equal numbers pair in order.
    for (const bool receives : {peer.index == 0, peer.index != 0}) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::uint64_t number = i < 2 ? 5 : i;
        receives ? port->receive(number, host_buffer(in[i]), outcomes.done(i))
                 : port->send(number, host_buffer(out[i]), outcomes.done(out.size() + i));
      }
    }
    for (const auto& outcome : outcomes.wait_for(2 * out.size())) EXPECT_FALSE(outcome.has_value());
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(in[i], pattern(kSizes[i] + static_cast<std::uint64_t>(1 - peer.index), kSizes[i])) << i;
    }
    port->forget(host_buffer(out.back()));
    greet(peer);  // channels are as they were
    peer.meeting.meet();
  };
  run_peers(PeerMode::kThreads, options(), role, role);
}

TEST_P(UcxLinks, ADirectMessageOfAnotherSizeIsAMismatch) {
  run_peers(
      PeerMode::kThreads, options(),
      [](Peer& peer) {
        greet(peer);
        Outcomes outcomes;
        std::vector<std::byte> bytes(1000);
        peer.link().direct()->send(1, {bytes.data(), 999}, outcomes.done(0));
        peer.link().direct()->send(2, {bytes.data(), 1000}, outcomes.done(1));
        outcomes.wait_for(2);
        greet(peer);
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer);
        Outcomes outcomes;
        std::vector<std::byte> bytes(2000);
        peer.link().direct()->receive(1, {bytes.data(), 1000}, outcomes.done(0));
        peer.link().direct()->receive(2, {bytes.data() + 1000, 999}, outcomes.done(1));
        for (const auto& outcome : outcomes.wait_for(2)) EXPECT_EQ(outcome, ErrorKind::kMismatch);
        greet(peer);  // and the link lives on
        peer.meeting.meet();
      });
}

TEST_P(UcxLinks, TheEndOfALinkEndsItsDirectMessages) {
  run_peers(
      PeerMode::kThreads, options(),
      [](Peer& peer) {
        greet(peer);
        DirectPort* const port = peer.link().direct();
        Outcomes outcomes;
        std::vector<std::byte> bytes(std::size_t{1} << 20);
        port->receive(1, host_buffer(bytes), outcomes.done(0));
        peer.meeting.meet();
        peer.observer.wait_for_failure();
        port->receive(2, host_buffer(bytes), outcomes.done(1));
        for (const auto& outcome : outcomes.wait_for(2)) EXPECT_EQ(outcome, ErrorKind::kPeerLost);
      },
      [](Peer& peer) {
        greet(peer);
        peer.meeting.meet();
        peer.endpoint.abort();
      });
}

TEST_P(UcxLinks, MemoryThatUcxDoesNotKnowIsRefused) {
  run_peers(
      PeerMode::kThreads, options(),
      [](Peer& peer) {
        greet(peer);
        DirectPort* const port = peer.link().direct();
        std::vector<std::byte> bytes(100);
        for (const auto kind : {transport::MemoryKind::kCuda, transport::MemoryKind::kRocm}) {
          if (port->reaches(kind)) continue;  // a machine with such a device
          const DirectBuffer buffer{bytes.data(), bytes.size(), kind};
          EXPECT_EQ(error_of([&] { port->send(1, buffer, {}); }).kind(), ErrorKind::kInvalidArgument);
          EXPECT_EQ(error_of([&] { port->remember(buffer); }).kind(), ErrorKind::kInvalidArgument);
        }
        peer.meeting.meet();
      },
      [](Peer& peer) {
        greet(peer);
        peer.meeting.meet();
      });
}

PeerAddress end(TransportChoice choice, UcxReach reach, const char* host) {
  PeerAddress address;
  address.transport = choice;
  address.ucx = reach;
  address.host = host;
  return address;
}

TEST(UcxChoice, BothEndsChooseTheSame) {
  using Choice = TransportChoice;
  struct Case {
    PeerAddress a;
    PeerAddress b;
    std::optional<LinkKind> kind;
  };
  const Case cases[] = {
      {end(Choice::kAuto, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kRdma, "h"), LinkKind::kShm},
      {end(Choice::kAuto, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kRdma, "g"), LinkKind::kUcx},
      {end(Choice::kAuto, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kHost, "g"), LinkKind::kTcp},
      {end(Choice::kAuto, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kNone, "g"), LinkKind::kTcp},
      {end(Choice::kUcx, UcxReach::kHost, "h"), end(Choice::kUcx, UcxReach::kHost, "h"), LinkKind::kUcx},
      {end(Choice::kUcx, UcxReach::kHost, "h"), end(Choice::kUcx, UcxReach::kHost, "g"), LinkKind::kUcx},
      {end(Choice::kUcx, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kHost, "g"), LinkKind::kUcx},
      {end(Choice::kUcx, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kNone, "g"), LinkKind::kTcp},
      {end(Choice::kUcx, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kNone, "h"), LinkKind::kShm},
      {end(Choice::kUcx, UcxReach::kRdma, "h"), end(Choice::kTcp, UcxReach::kNone, "h"), std::nullopt},
      {end(Choice::kUcx, UcxReach::kRdma, "h"), end(Choice::kShm, UcxReach::kNone, "h"), std::nullopt},
      {end(Choice::kTcp, UcxReach::kRdma, "h"), end(Choice::kAuto, UcxReach::kRdma, "g"), LinkKind::kTcp},
      {end(Choice::kShm, UcxReach::kNone, "h"), end(Choice::kTcp, UcxReach::kNone, "h"), std::nullopt},
      {end(Choice::kShm, UcxReach::kNone, "h"), end(Choice::kAuto, UcxReach::kNone, "g"), std::nullopt},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(transport::choose_kind(cases[i].a, cases[i].b), cases[i].kind) << i;
    EXPECT_EQ(transport::choose_kind(cases[i].b, cases[i].a), cases[i].kind) << i;
  }
}

}  // namespace
}  // namespace atl::test
