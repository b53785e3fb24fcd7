// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "atoll/transport/shared_memory.h"
#include "tests/support/peers.h"

namespace atl::transport {
namespace {

using shm::MessageType;
using test::wait_until;

/// A link whose peer is played by the test, over a bare stream.
class ShmLinkAlone : public testing::Test {
 protected:
  ShmLinkAlone() {
    std::array<int, 2> sockets{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()), 0);
    far_ = shm::Stream(Fd(sockets[0]));
    near_ = Fd(sockets[1]);
  }

  ~ShmLinkAlone() override {
    loop_->run_and_wait([&] { link_.close_on_loop(Error(ErrorKind::kAborted, "the test is over")); });
    loop_.reset();
  }

  void attach() {
    loop_->run_and_wait([&] { link_.attach_on_loop(std::move(near_), true, peer_); });
  }

  void say(MessageType type, std::span<const std::byte> body, Fd memory = {}) {
    far_.queue(type, body, std::move(memory));
    far_.flush();
  }

  void say_hello() {
    say(MessageType::kHello, bytes_of(shm::Hello{1000}), make_sealed_memfd("bell", sizeof(DoorbellPage)));
  }

  void say_open(std::uint64_t window, Fd memory, std::uint32_t bell = 0) {
    say(MessageType::kOpen, bytes_of(shm::Open{1, 2, bell, window}), std::move(memory));
  }

  static Fd ring_memory() { return RingWriter(kMinWindowBytes).take_memory(); }

  void attach_and_come_up() {
    attach();
    say_hello();
    wait_until("up", [&] { return link_.state() == LinkState::kUp; });
  }

  void expect_failure(ErrorKind kind) {
    const auto failure = observer_.wait_for_failure();
    EXPECT_EQ(failure.error.kind(), kind) << failure.error.what();
    EXPECT_NE(std::string(failure.error.what()).find("rank 5"), std::string::npos) << failure.error.what();
    EXPECT_EQ(link_.state(), LinkState::kFailed);
  }

  /// Reads what the link says until `count` messages of type `type` arrived; returns how many came with memory.
  std::size_t listen(MessageType type, std::size_t count) {
    std::size_t seen = 0;
    std::size_t memories = 0;
    while (seen < count) {
      pollfd ready{far_.descriptor(), POLLIN, 0};
      if (::poll(&ready, 1, 10'000) != 1) throw Error(ErrorKind::kTimeout, std::to_string(seen) + " messages arrived");
      far_.receive();
      while (const auto message = far_.next()) {
        const bool has_memory = message->type == MessageType::kHello || message->type == MessageType::kOpen;
        if (has_memory) memories += far_.take_memory() ? 1 : 0;
        seen += message->type == type ? 1 : 0;
      }
    }
    return memories;
  }

  EndpointOptions options_ = test::peer_options(TransportChoice::kShm, 0);
  std::unique_ptr<Loop> loop_ = std::make_unique<Loop>("shm-link-test");
  Doorbell doorbell_;
  test::RecordingObserver observer_;
  PeerAddress peer_{
      .id = {}, .host = "", .unix_name = "", .tcp = {}, .name = "rank 5", .transport = TransportChoice::kShm};
  ShmLink link_{LinkOwner{options_, *loop_, doorbell_, observer_}, peer_};
  shm::Stream far_;
  Fd near_;
};

TEST_F(ShmLinkAlone, ComesUpWithThePeersHello) {
  attach();
  EXPECT_EQ(link_.state(), LinkState::kConnecting);
  EXPECT_EQ(listen(MessageType::kHello, 1), 1U);
  say_hello();
  wait_until("up", [&] { return link_.state() == LinkState::kUp; });
}

TEST_F(ShmLinkAlone, GarbageIsAProtocolError) {
  attach();
  const std::string garbage = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(::send(far_.descriptor(), garbage.data(), garbage.size(), 0), static_cast<ssize_t>(garbage.size()));
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, NothingMayComeBeforeTheHello) {
  attach();
  say(MessageType::kControl, {});
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, ASecondHelloIsAProtocolError) {
  attach_and_come_up();
  say_hello();
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, AHelloWithoutMemoryIsAProtocolError) {
  attach();
  say(MessageType::kHello, bytes_of(shm::Hello{1000}));
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, MemoryThatCouldShrinkIsRefused) {
  attach_and_come_up();
  Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096 + kMinWindowBytes), 0);
  say_open(kMinWindowBytes, std::move(unsealed));
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, AWindowOfAnotherSizeThanItsMemoryIsRefused) {
  attach_and_come_up();
  say_open(2 * kMinWindowBytes, ring_memory());
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, AnInvalidWindowIsRefused) {
  attach_and_come_up();
  say_open(kMinWindowBytes + 64, ring_memory());
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, AnUnknownBellIsRefused) {
  attach_and_come_up();
  say_open(kMinWindowBytes, ring_memory(), kBellCount);
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, AChannelIsOpenedOnce) {
  attach_and_come_up();
  say_open(kMinWindowBytes, ring_memory());
  say_open(kMinWindowBytes, ring_memory());
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, ThePeersChannelsAreBounded) {
  attach_and_come_up();
  for (std::uint64_t i = 0; i < 5000 && link_.state() == LinkState::kUp; ++i) {
    say(MessageType::kOpen, bytes_of(shm::Open{i, 0, 0, kMinWindowBytes}), ring_memory());
    wait_until("room", [&] { return far_.flush(), far_.queued() == 0; });
  }
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, DescriptorsWithoutMessagesAreBounded) {
  attach_and_come_up();
  for (int i = 0; i < 200 && link_.state() == LinkState::kUp; ++i) {
    say(MessageType::kControl, {}, ring_memory());
    wait_until("room", [&] { return far_.flush(), far_.queued() == 0; });
  }
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, ARingThatDoesNotAddUpFailsTheLink) {
  attach_and_come_up();
  RingWriter writer(kMinWindowBytes);
  Fd memory = writer.take_memory();
  const MappedRing view = MappedRing::map(memory, sizeof(RingControl), kMinWindowBytes, MappedRing::Access::kReadWrite);
  reinterpret_cast<RingControl*>(view.control())->head.store(7);
  Channel& channel = link_.channel({.group = 1, .index = 2, .bell = Bell::kCollective});
  say_open(kMinWindowBytes, std::move(memory));
  EXPECT_THROW(wait_until("the ring", [&] { return channel.front() != nullptr; }), Error);
  expect_failure(ErrorKind::kProtocol);
}

TEST_F(ShmLinkAlone, ChannelsHoldNoDescriptors) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = open_descriptors();
  for (std::uint64_t i = 0; i < 20; ++i) link_.channel({.group = i, .index = 0, .bell = Bell::kCollective});
  EXPECT_EQ(open_descriptors(), before);
  attach_and_come_up();
  for (std::uint64_t i = 20; i < 40; ++i) link_.channel({.group = i, .index = 0, .bell = Bell::kCollective});
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ShmLinkAlone, MoreChannelsThanTheSocketTakesAtOnceAllArrive) {
  constexpr std::size_t kChannels = 1500;
  for (std::uint64_t i = 0; i < kChannels / 2; ++i) link_.channel({.group = i, .index = 0, .bell = Bell::kCollective});
  attach_and_come_up();
  for (std::uint64_t i = kChannels / 2; i < kChannels; ++i)
    link_.channel({.group = i, .index = 0, .bell = Bell::kCollective});
  EXPECT_EQ(listen(MessageType::kOpen, kChannels), kChannels + 1);
}

TEST_F(ShmLinkAlone, ControlMessagesAreRefusedWhenThePeerTakesNone) {
  attach_and_come_up();
  const std::vector<std::byte> message(kMaxControlBytes);
  std::size_t sent = 0;
  while (link_.send_control(message)) ASSERT_LT(++sent, 100'000U);
  EXPECT_GT(sent, 500U);
  EXPECT_EQ(listen(MessageType::kControl, sent), 1U);
  wait_until("room again", [&] { return link_.send_control(message); });
}

TEST_F(ShmLinkAlone, ShutdownSaysByeAfterEverythingElse) {
  attach_and_come_up();
  const std::vector<std::byte> message(kMaxControlBytes);
  while (link_.send_control(message)) {
  }
  loop_->run_and_wait([&] {
    link_.begin_shutdown_on_loop();
    EXPECT_FALSE(link_.drained_on_loop());
  });
  listen(MessageType::kBye, 1);
  bool drained = false;
  wait_until("drained", [&] { return loop_->run_and_wait([&] { drained = link_.drained_on_loop(); }), drained; });
}

TEST_F(ShmLinkAlone, ReportsAndGoodbyeLeaveBeforeThePeersHelloHasCome) {
  EXPECT_FALSE(link_.send_control({}));
  attach();
  ASSERT_EQ(link_.state(), LinkState::kConnecting);
  EXPECT_TRUE(link_.send_control(std::vector<std::byte>(100)));
  loop_->run_and_wait([&] { link_.begin_shutdown_on_loop(); });
  EXPECT_EQ(listen(MessageType::kBye, 1), 1U);  // after the hello, which came with memory
  bool drained = false;
  wait_until("drained", [&] { return loop_->run_and_wait([&] { drained = link_.drained_on_loop(); }), drained; });
}

TEST_F(ShmLinkAlone, ThePeersBeatKeepsItAlive) {
  options_.heartbeat = std::chrono::milliseconds(1000);
  attach();
  Fd memory = make_sealed_memfd("bell", sizeof(DoorbellPage));
  void* const page = ::mmap(nullptr, sizeof(DoorbellPage), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& beat = static_cast<DoorbellPage*>(page)->beat;
  say(MessageType::kHello, bytes_of(shm::Hello{1000}), std::move(memory));
  wait_until("up", [&] { return link_.state() == LinkState::kUp; });
  // Time is the test's: ticks 100 ms apart, a beat with each.
  Clock::time_point now = Clock::now();
  const auto tick = [&] {
    now += std::chrono::milliseconds(100);
    loop_->run_and_wait([&] { link_.tick_on_loop(now); });
  };
  for (int i = 0; i < 50; ++i) {
    beat.fetch_add(1);
    tick();
  }
  EXPECT_EQ(link_.state(), LinkState::kUp);
  for (int i = 0; i < 9; ++i) tick();
  EXPECT_EQ(link_.state(), LinkState::kUp);
  // A gap in which this process did not run itself is no silence of the peer.
  now += std::chrono::hours(1);
  beat.fetch_add(1);
  tick();
  now += std::chrono::minutes(1);
  tick();
  EXPECT_EQ(link_.state(), LinkState::kUp);
  for (int i = 0; i < 9; ++i) tick();
  EXPECT_EQ(link_.state(), LinkState::kFailed);
  expect_failure(ErrorKind::kPeerLost);
  ::munmap(page, sizeof(DoorbellPage));
}

TEST_F(ShmLinkAlone, APeerThatNeverSaysHelloIsLostWithTheHeartbeat) {
  options_.heartbeat = std::chrono::milliseconds(2000);
  attach();
  Clock::time_point now = Clock::now();
  const auto tick = [&](std::chrono::milliseconds step) {
    now += step;
    loop_->run_and_wait([&] { link_.tick_on_loop(now); });
  };
  // A gap in which this process did not run itself is no silence of the peer.
  tick(std::chrono::milliseconds(4000));
  for (int i = 0; i < 5; ++i) tick(std::chrono::milliseconds(250));
  EXPECT_EQ(link_.state(), LinkState::kConnecting);
  for (int i = 0; i < 3; ++i) tick(std::chrono::milliseconds(250));
  expect_failure(ErrorKind::kPeerLost);
}

TEST_F(ShmLinkAlone, IsUnreachableWhenNotUpInTime) {
  attach();
  loop_->run_and_wait([&] { link_.tick_on_loop(Clock::now()); });
  EXPECT_EQ(link_.state(), LinkState::kConnecting);
  loop_->run_and_wait([&] { link_.tick_on_loop(Clock::now() + options_.connect_timeout); });
  expect_failure(ErrorKind::kPeerLost);
}

/// Paths of everything that `process` maps together with others.
std::vector<std::string> shared_mappings(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  std::vector<std::string> paths;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, access, offset, device, inode, path;
    fields >> range >> access >> offset >> device >> inode >> path;
    if (access.size() == 4 && access[3] == 's') paths.push_back(path);
  }
  return paths;
}

std::size_t sockets_named(const std::string& name) {
  std::ifstream table("/proc/net/unix");
  std::size_t count = 0;
  for (std::string line; std::getline(table, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

// Memory without a name and an abstract socket end with their process: no file system keeps anything.
// Proves T-9.
TEST(ShmLink, NothingIsLeftOfAKilledProcess) {
  std::string name;
  std::vector<EndpointOptions> both{test::peer_options(TransportChoice::kShm, 0),
                                    test::peer_options(TransportChoice::kShm, 1)};
  const auto survivor = [&](test::Peer& peer) {
    name = peer.other.unix_name;
    test::receive(peer, peer.channel());
    EXPECT_GE(sockets_named("@" + name), 1U);
    const auto mappings = shared_mappings(peer.other_process);
    EXPECT_GE(mappings.size(), 4U);  // a doorbell of its own and one of its peer, and rings
    for (const std::string& path : mappings) EXPECT_EQ(path.substr(0, 12), "/memfd:atoll") << path;
    ASSERT_EQ(::kill(peer.other_process, SIGKILL), 0);
    peer.observer.wait_for_failure();
  };
  const auto victim = [](test::Peer& peer) {
    test::send(peer, peer.channel(), {}, {});
    test::receive(peer, peer.channel());
  };
  test::run_peers(test::PeerMode::kProcesses, both, survivor, victim, test::Ending::kKilled);
  ASSERT_FALSE(name.empty());
  EXPECT_EQ(sockets_named(name), 0U);
}

}  // namespace
}  // namespace atl::transport
