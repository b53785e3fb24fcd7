// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_contract.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "tests/support/error_of.h"

namespace atl::test {

using transport::Bell;
using transport::Channel;
using transport::Frame;
using transport::FrameHeader;
using transport::Link;
using transport::LinkState;

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinkContract);

std::vector<std::byte> pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return data;
}

FrameHeader numbered_header(std::uint64_t seed, std::size_t payload_bytes) {
  FrameHeader header;
  header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  header.kind = static_cast<std::uint8_t>(seed + 1);
  header.operation = static_cast<std::uint8_t>(seed + 2);
  header.dtype = static_cast<std::uint8_t>(seed + 3);
  header.reduce_op = static_cast<std::uint8_t>(seed + 4);
  header.attempt = static_cast<std::uint32_t>(seed + 5);
  header.root = static_cast<std::int32_t>(seed + 6);
  header.sequence = seed + 7;
  header.count = seed + 8;
  header.offset = seed + 9;
  header.tag = ~seed;
  return header;
}

void greet(Peer& peer, Channel& channel) {
  send(peer, channel, numbered_header(1, 1), pattern(1, 1));
  receive(peer, channel);
  channel.pop();
}

namespace {

bool is_frame(const Frame& frame, std::uint64_t seed, std::size_t bytes) {
  const FrameHeader expected = numbered_header(seed, bytes);
  const std::vector<std::byte> data = pattern(seed, bytes);
  return std::memcmp(&frame.header, &expected, sizeof(expected)) == 0 &&
         std::equal(frame.payload.begin(), frame.payload.end(), data.begin(), data.end());
}

void send_numbered(Peer& peer, Channel& channel, std::uint64_t seed, std::size_t bytes, Bell bell = Bell::kCollective) {
  send(peer, channel, numbered_header(seed, bytes), pattern(seed, bytes), bell);
}

void expect_numbered(Peer& peer, Channel& channel, std::uint64_t seed, std::size_t bytes,
                     Bell bell = Bell::kCollective) {
  const Frame& frame = receive(peer, channel, bell);
  EXPECT_TRUE(is_frame(frame, seed, bytes)) << "frame " << seed << " of " << bytes << " bytes arrived with sequence "
                                            << frame.header.sequence << " and " << frame.payload.size() << " bytes";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.payload.data()) % 64, 0U);
  channel.pop();
}

/// Fills the channel's window; returns how many frames went in.
std::uint64_t fill(Peer& peer, Channel& channel, std::size_t bytes) {
  send_numbered(peer, channel, 0, bytes);  // waits for the link
  std::uint64_t count = 1;
  while (channel.try_send(numbered_header(count, bytes), pattern(count, bytes))) ++count;
  return count;
}

// Proves T-1.
TEST_P(LinkContract, FramesArriveInOrderAndIntact) {
  run([](Peer& peer) {
    Channel& channel = peer.channel();
    EXPECT_LE(channel.max_payload(), channel.window_bytes() / 4);
    const std::array<std::size_t, 9> sizes{
        0, 1, 63, 64, 65, channel.max_payload(), 127, 4096, channel.max_payload() - 1};
    // Both send first: what is accepted arrives without help from the other side's thread.
    for (std::size_t i = 0; i < 5; ++i) send_numbered(peer, channel, i, sizes[i]);
    for (std::size_t i = 0; i < 5; ++i) expect_numbered(peer, channel, i, sizes[i]);
    for (std::uint64_t round = 0; round < 50; ++round) {
      for (const std::size_t bytes : sizes) {
        send_numbered(peer, channel, round, bytes);
        expect_numbered(peer, channel, round, bytes);
      }
    }
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, ReportsWhatItIs) {
  run([](Peer& peer) {
    Link& link = peer.link();
    EXPECT_EQ(&link, &peer.link());
    EXPECT_EQ(link.peer(), peer.other.id);
    wait_on_bell(peer.endpoint, Bell::kCollective, "up", [&] { return link.state() == LinkState::kUp; });
    const auto choice = peer.endpoint.options().transport;
    const auto expected = choice == transport::TransportChoice::kShm   ? transport::LinkKind::kShm
                          : choice == transport::TransportChoice::kUcx ? transport::LinkKind::kUcx
                                                                       : transport::LinkKind::kTcp;
    EXPECT_EQ(link.kind(), expected) << link.describe();
    EXPECT_EQ(link.describe().substr(0, 3), to_string(link.kind()));
    EXPECT_EQ(&peer.channel(3), &peer.channel(3));
    EXPECT_NE(&peer.channel(3), &peer.channel(4));
    peer.meeting.meet();
  });
}

// Proves T-3.
TEST_P(LinkContract, AFullWindowRefusesUntilAFrameIsPopped) {
  const auto sender = [](Peer& peer) {
    Channel& channel = peer.channel();
    const std::size_t bytes = channel.max_payload() / 2;
    const std::uint64_t sent = fill(peer, channel, bytes);
    EXPECT_GE(sent, 6U);  // eight minus what headers take
    EXPECT_LE(sent * (bytes + sizeof(FrameHeader)), channel.window_bytes());
    peer.meeting.exchange(std::to_string(sent));
    peer.meeting.meet();  // the receiver has popped all
    for (std::uint64_t i = 0; i < 2 * sent; ++i) send_numbered(peer, channel, i, bytes);
    peer.meeting.meet();
  };
  const auto receiver = [](Peer& peer) {
    Channel& channel = peer.channel();
    const std::uint64_t sent = std::stoull(peer.meeting.exchange(""));
    for (std::uint64_t i = 0; i < sent; ++i) expect_numbered(peer, channel, i, channel.max_payload() / 2);
    peer.meeting.meet();
    for (std::uint64_t i = 0; i < 2 * sent; ++i) expect_numbered(peer, channel, i, channel.max_payload() / 2);
    EXPECT_EQ(channel.front(), nullptr);
    peer.meeting.meet();
  };
  run(sender, receiver);
}

TEST_P(LinkContract, AFrameStaysUntouchedUntilPop) {
  const auto sender = [](Peer& peer) {
    Channel& channel = peer.channel();
    peer.meeting.exchange(std::to_string(fill(peer, channel, 1000)));
    peer.meeting.meet();
  };
  const auto receiver = [](Peer& peer) {
    Channel& channel = peer.channel();
    const Frame& frame = receive(peer, channel);
    peer.meeting.meet();
    EXPECT_TRUE(is_frame(frame, 0, 1000));
    EXPECT_EQ(channel.front(), &frame);
    peer.meeting.meet();
  };
  run(sender, receiver);
}

// Proves T-2.
TEST_P(LinkContract, AFullChannelDoesNotBlockAnother) {
  const auto sender = [](Peer& peer) {
    Channel& full = peer.channel(0);
    Channel& free = peer.channel(1, Bell::kPointToPoint);
    const std::uint64_t stuck = fill(peer, full, full.max_payload());
    for (std::uint64_t i = 0; i < 500; ++i) send_numbered(peer, free, i, 5000, Bell::kPointToPoint);
    peer.meeting.exchange(std::to_string(stuck));
    peer.meeting.meet();
  };
  const auto receiver = [](Peer& peer) {
    Channel& full = peer.channel(0);
    Channel& free = peer.channel(1, Bell::kPointToPoint);
    for (std::uint64_t i = 0; i < 500; ++i) expect_numbered(peer, free, i, 5000, Bell::kPointToPoint);
    const std::uint64_t stuck = std::stoull(peer.meeting.exchange(""));
    for (std::uint64_t i = 0; i < stuck; ++i) expect_numbered(peer, full, i, full.max_payload());
    peer.meeting.meet();
  };
  run(sender, receiver);
}

TEST_P(LinkContract, AChannelMayBeUsedBeforeTheLinkIsUp) {
  run([](Peer& peer) {
    Channel& channel = peer.channel();  // nothing has been connected yet
    EXPECT_NO_THROW(channel.front());
    send_numbered(peer, channel, 1, 100);
    expect_numbered(peer, channel, 1, 100);
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, FramesWaitForAReceiverThatOpensItsChannelLater) {
  const auto sender = [](Peer& peer) {
    Channel& channel = peer.channel(5);
    for (std::uint64_t i = 0; i < 3; ++i) send_numbered(peer, channel, i, 100);
    peer.meeting.meet();
    expect_numbered(peer, channel, 9, 1);
    peer.meeting.meet();
  };
  const auto receiver = [](Peer& peer) {
    peer.meeting.meet();
    Channel& channel = peer.channel(5);
    for (std::uint64_t i = 0; i < 3; ++i) expect_numbered(peer, channel, i, 100);
    send_numbered(peer, channel, 9, 1);
    peer.meeting.meet();
  };
  run(sender, receiver);
}

TEST_P(LinkContract, ManyRacesToOpenGiveOneLink) {
  for (int round = 0; round < 10; ++round) {
    run([](Peer& peer) {
      peer.meeting.meet();
      Channel& channel = peer.channel();  // both sides at the same moment
      send_numbered(peer, channel, 1, 1);
      expect_numbered(peer, channel, 1, 1);
      EXPECT_EQ(peer.endpoint.links().size(), 1U);
      peer.meeting.meet();
      EXPECT_EQ(peer.observer.failure_count(), 0U);
      peer.meeting.meet();
    });
  }
}

TEST_P(LinkContract, ControlMessagesArriveInOrder) {
  run([](Peer& peer) {
    Link& link = peer.link();
    wait_on_bell(peer.endpoint, Bell::kCollective, "up", [&] { return link.state() == LinkState::kUp; });
    std::vector<std::string> expected{"", "short", std::string(transport::kMaxControlBytes, 'x')};
    for (int i = 0; i < 200; ++i) expected.push_back("message " + std::to_string(i));
    for (const std::string& text : expected) {
      wait_until("control", [&] { return link.send_control(std::as_bytes(std::span(text.data(), text.size()))); });
    }
    EXPECT_EQ(peer.observer.wait_for_controls(expected.size()), expected);
    peer.meeting.meet();
  });
}

// Proves T-2.
TEST_P(LinkContract, ControlMessagesPassAFullChannel) {
  run([](Peer& peer) {
    fill(peer, peer.channel(), 5000);
    EXPECT_TRUE(peer.link().send_control(pattern(1, 10)));
    EXPECT_EQ(peer.observer.wait_for_controls(1).size(), 1U);
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, AControlMessageAfterFramesArrivesAfterThem) {
  constexpr std::size_t kRounds = 30;
  constexpr std::uint32_t kFrames = 20;
  const auto sender = [](Peer& peer) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::uint32_t i = 0; i < kFrames; ++i) send_numbered(peer, peer.channel(i % 3), i, 100 * i);
      wait_until("control", [&] { return peer.link().send_control_after_frames(pattern(round, 10)); });
      peer.meeting.meet();
    }
  };
  const auto receiver = [](Peer& peer) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      peer.observer.wait_for_controls(round + 1);
      for (std::uint32_t i = 0; i < kFrames; ++i) {
        Channel& channel = peer.channel(i % 3);
        const Frame* const frame = channel.front();
        ASSERT_NE(frame, nullptr) << "round " << round << ", frame " << i;
        EXPECT_TRUE(is_frame(*frame, i, 100 * i));
        channel.pop();
      }
      peer.meeting.meet();
    }
  };
  run(sender, receiver);
}

TEST_P(LinkContract, ManyChannels) {
  run([](Peer& peer) {
    constexpr std::uint32_t kChannels = 300;
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      const Bell bell = i % 2 == 0 ? Bell::kCollective : Bell::kPointToPoint;
      send_numbered(peer, peer.channel(i, bell), i, i, bell);
    }
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      const Bell bell = i % 2 == 0 ? Bell::kCollective : Bell::kPointToPoint;
      expect_numbered(peer, peer.channel(i, bell), i, i, bell);
    }
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, PingPong) {
  constexpr int kRounds = 10'000;
  run([](Peer& peer) {
    Channel& channel = peer.channel();
    transport::Sleeper sleeper(peer.endpoint.doorbell().bell(Bell::kCollective), transport::spin_budget(2));
    const std::byte one{7};
    int wrong = 0;
    for (int i = 0; i < 2 * kRounds; ++i) {
      const bool sends = i % 2 == peer.index;
      const Deadline deadline = Deadline::after(kPatience);
      FrameHeader header;
      header.payload_bytes = 1;
      header.sequence = static_cast<std::uint64_t>(i);
      while (sends ? !channel.try_send(header, {&one, 1}) : channel.front() == nullptr) {
        ASSERT_FALSE(deadline.expired()) << "round " << i;
        sleeper.wait_briefly(kPatience);
      }
      sleeper.reset();
      if (sends) continue;
      wrong += channel.front()->header.sequence == static_cast<std::uint64_t>(i) && channel.front()->payload[0] == one
                   ? 0
                   : 1;
      channel.pop();
    }
    EXPECT_EQ(wrong, 0);
    peer.meeting.meet();
  });
}

// Proves T-1.
TEST_P(LinkContract, RandomSizesBothWaysAtOnce) {
  run([](Peer& peer) {
    constexpr std::uint64_t kFrames = 2000;
    Channel& channel = peer.channel();
    const auto sizes = [&](unsigned seed) {
      std::mt19937 random(seed);
      std::vector<std::size_t> all(kFrames);
      for (std::size_t& bytes : all)
        bytes = random() % 4 == 0 ? random() % (channel.max_payload() + 1) : random() % 300;
      return all;
    };
    const auto mine = sizes(static_cast<unsigned>(peer.index));
    const auto theirs = sizes(static_cast<unsigned>(1 - peer.index));
    std::thread sender([&] {
      try {
        for (std::uint64_t i = 0; i < kFrames; ++i) send_numbered(peer, channel, i, mine[i]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
    try {
      for (std::uint64_t i = 0; i < kFrames; ++i) expect_numbered(peer, channel, i, theirs[i]);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    sender.join();
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, WrongFramesAreRefusedAndHarmNothing) {
  run([](Peer& peer) {
    Channel& channel = peer.channel();
    send_numbered(peer, channel, 1, 10);
    const auto kind_of = [](const auto& call) { return error_of(call).kind(); };
    const auto large = pattern(1, channel.max_payload() + 1);
    EXPECT_EQ(kind_of([&] { channel.try_send(numbered_header(1, large.size()), large); }), ErrorKind::kInvalidArgument);
    EXPECT_EQ(kind_of([&] { channel.try_send(numbered_header(1, 9), pattern(1, 10)); }), ErrorKind::kInvalidArgument);
    EXPECT_EQ(kind_of([&] { peer.link().send_control(pattern(1, transport::kMaxControlBytes + 1)); }),
              ErrorKind::kInvalidArgument);
    send_numbered(peer, channel, 2, 10);
    expect_numbered(peer, channel, 1, 10);
    expect_numbered(peer, channel, 2, 10);
    peer.meeting.meet();
  });
}

TEST_P(LinkContract, FramesForAClosedChannelAreDropped) {
  const auto sender = [](Peer& peer) {
    Channel& closed = peer.channel(0);
    Channel& open = peer.channel(1);
    fill(peer, closed, 5000);
    send_numbered(peer, open, 1, 1);
    // The receiver closes without reading; a sender that is stuck on the window continues.
    for (std::uint64_t i = 0; i < 100; ++i) send_numbered(peer, closed, i, 5000);
    send_numbered(peer, open, 2, 1);
    peer.meeting.meet();
  };
  const auto receiver = [](Peer& peer) {
    peer.channel(0);
    Channel& open = peer.channel(1);
    expect_numbered(peer, open, 1, 1);
    const transport::ChannelId id{.group = 7, .index = 0, .bell = Bell::kCollective};
    peer.link().close_channel(id);
    peer.link().close_channel(id);
    expect_numbered(peer, open, 2, 1);
    EXPECT_THROW(peer.link().channel(id), Error);
    peer.meeting.meet();
  };
  run(sender, receiver);
}

}  // namespace
}  // namespace atl::test
