// SPDX-License-Identifier: Apache-2.0
// Frames that are lent over links of two endpoints.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "atoll/transport/arena.h"
#include "tests/support/log_recorder.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/peers.h"
#include "tests/transport/link_contract.h"

namespace atl::transport {
namespace {

using test::wait_until;

constexpr std::size_t kLentBytes = 5000;

FrameHeader lent_header(std::uint64_t sequence = 0, Payload where = Payload::kLent) {
  FrameHeader header;
  header.where = where;
  header.payload_bytes = kLentBytes;
  header.sequence = sequence;
  return header;
}

std::size_t mappings_of_arenas() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("atoll-arena") != std::string::npos ? 1 : 0;
  return count;
}

EndpointOptions with_arena(int index) {
  EndpointOptions options = test::peer_options(TransportChoice::kShm, index);
  options.arena = std::make_shared<Arena>(std::size_t{64} << 20);
  options.heartbeat = std::chrono::milliseconds(1000);
  return options;
}

/// Memory in an end's arena, for frames that the end lends.
class LentMemory {
 public:
  explicit LentMemory(Endpoint& endpoint) : endpoint_(endpoint) {}
  ~LentMemory() { arena_.free(data_); }
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  void fill(std::uint64_t value) { std::memset(data_, static_cast<int>(value), kLentBytes); }

  Payload lend(Channel& channel, const FrameHeader& header) {
    const ArenaPlace place = arena_.find(data_, kLentBytes).value();
    std::optional<Payload> where;
    test::wait_on_bell(endpoint_, Bell::kCollective, "room", [&] {
      where = channel.try_lend(header, {data_, kLentBytes}, place);
      return where.has_value();
    });
    return *where;
  }

 private:
  Endpoint& endpoint_;
  Arena& arena_ = *endpoint_.options().arena;
  std::byte* data_ = static_cast<std::byte*>(arena_.allocate(kLentBytes));
};

class LendingLinks : public testing::TestWithParam<test::PeerMode> {};

// Proves T-11.
TEST_P(LendingLinks, PassEachSlabOnceAndForgetRetiredOnes) {
  constexpr std::uint64_t kRounds = 50;
  const auto lend = [](test::Peer& peer) {
    Channel& channel = peer.channel();
    ASSERT_TRUE(channel.can_lend());
    {
      LentMemory memory(peer.endpoint);
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        memory.fill(round);
        memory.lend(channel, lent_header(round));
        test::wait_on_bell(peer.endpoint, Bell::kCollective, "the frame's return",
                           [&] { return channel.has_returned(); });
      }
    }
    peer.endpoint.options().arena->trim();
    peer.meeting.meet();
    peer.meeting.meet();
  };
  const auto read = [](test::Peer& peer) {
    Channel& channel = peer.channel();
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const Frame& frame = test::receive(peer, channel);
      EXPECT_EQ(frame.header.sequence, round);
      EXPECT_EQ(frame.payload.size(), kLentBytes);
      for (const std::byte byte : frame.payload) ASSERT_EQ(byte, static_cast<std::byte>(round));
      EXPECT_TRUE(channel.is_intact());
      channel.pop();
    }
    peer.meeting.meet();
    wait_until("the retired slab to be unmapped", [] { return mappings_of_arenas() == 0; });
    peer.meeting.meet();
  };
  test::run_peers(GetParam(), {with_arena(0), with_arena(1)}, lend, read);
}

INSTANTIATE_TEST_SUITE_P(Peers, LendingLinks, testing::Values(test::PeerMode::kThreads, test::PeerMode::kProcesses),
                         [](const auto& mode) {
                           return mode.param == test::PeerMode::kThreads ? "Threads" : "Processes";
                         });

// Its mark that it is writing stays in the ring.
TEST(LendingProcesses, AKilledOneNoLongerWrites) {
  const auto lend = [](test::Peer& peer) {
    Channel& channel = peer.channel();
    LentMemory memory(peer.endpoint);
    memory.lend(channel, lent_header(0, Payload::kForResult));
    peer.meeting.meet();
    channel.revoke();
    EXPECT_TRUE(channel.written_range());
    ASSERT_EQ(::kill(peer.other_process, SIGKILL), 0);
    wait_until("the writer's end", [&] { return !channel.written_range(); });
  };
  const auto write = [](test::Peer& peer) {
    Channel& channel = peer.channel();
    test::receive(peer, channel);
    ASSERT_NE(channel.begin_write(), nullptr);
    peer.meeting.meet();
    peer.meeting.wait_for_end();
    ADD_FAILURE() << "still alive";
  };
  test::run_peers(test::PeerMode::kProcesses, {with_arena(0), with_arena(1)}, lend, write, test::Ending::kKilled);
}

TEST(LendingEndpoints, OneWithoutDescriptorsCopiesWarnsOnceAndLendsLater) {
  const test::LogRecorder lines;
  const auto lend = [&](test::Peer& peer) {
    Channel& channel = peer.channel();
    LentMemory memory(peer.endpoint);
    test::greet(peer, channel);
    peer.meeting.meet();  // nothing more needs a descriptor
    {
      const test::NoNewDescriptors none;
      for (int i = 0; i < 100; ++i) ASSERT_EQ(memory.lend(channel, lent_header()), Payload::kHere);
    }
    EXPECT_EQ(lines.count("tensors for rank 1 are copied"), 1U) << lines.text();
    wait_until("the slab to be passed", [&] { return memory.lend(channel, lent_header()) == Payload::kLent; });
    peer.meeting.meet();
  };
  const auto read = [](test::Peer& peer) {
    Channel& channel = peer.channel();
    test::greet(peer, channel);
    peer.meeting.meet();
    for (Payload where = Payload::kHere; where == Payload::kHere; channel.pop()) {
      const Frame& frame = test::receive(peer, channel);
      EXPECT_EQ(frame.payload.size(), kLentBytes);
      where = frame.header.where;
    }
    peer.meeting.meet();
  };
  test::run_peers(test::PeerMode::kThreads, {with_arena(0), with_arena(1)}, lend, read);
}

/// Counts the mappings of arenas when a link fails.
class MappingObserver : public test::RecordingObserver {
 public:
  void on_link_failed(Link& link, const Error& error, bool closed_in_order) override {
    mapped_ = mappings_of_arenas();
    RecordingObserver::on_link_failed(link, error, closed_in_order);
  }
  /// Returns what it has counted, after wait_for_failure().
  std::size_t mapped() const { return mapped_; }

 private:
  std::size_t mapped_ = 0;
};

// Unmapping a large arena takes seconds.
TEST(LendingEndpoints, TheEndOfOneIsReportedBeforeItsArenaIsUnmapped) {
  MappingObserver observer;
  test::RecordingObserver other_observer;
  Endpoint reader(with_arena(0), observer);
  Endpoint lender(with_arena(1), other_observer);
  const ChannelId id{.group = 7, .index = 0, .bell = Bell::kCollective};
  LentMemory memory(lender);
  memory.lend(lender.link(reader.address()).channel(id), lent_header());
  Channel& in = reader.link(lender.address()).channel(id);
  test::wait_on_bell(reader, Bell::kCollective, "the frame", [&] { return in.front() != nullptr; });
  in.pop();
  lender.abort();
  observer.wait_for_failure();
  EXPECT_EQ(observer.mapped(), 2U);  // by both ends
  wait_until("the slab to be unmapped", [] { return mappings_of_arenas() == 1; });
}

}  // namespace
}  // namespace atl::transport
