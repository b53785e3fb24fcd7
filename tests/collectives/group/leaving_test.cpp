// SPDX-License-Identifier: Apache-2.0
// What a rank has sent arrives after it has left, and ranks that stay do not depend on it.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <thread>

#include "tests/collectives/group/calls.h"
#include "tests/support/peers.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using std::chrono::milliseconds;

constexpr std::size_t kTransferBytes = 1'800'000;  // more than small sockets take, less than they and a link's queue

Ranks make(const std::string& letters, transport::TransportChoice transport) {
  RankOptions options;
  options.islands = layout(letters);
  options.transport = transport;
  return Ranks(options);
}

Call broadcast(std::vector<float>& data, int root) {
  Call call;
  call.operation = Operation::kBroadcast;
  call.root = root;
  call.input = call.output = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
  return call;
}

/// Makes the kernel buffer little of what this process's TCP connections send.
void make_sockets_small() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family == AF_UNIX) continue;
    const int bytes = 32768;
    for (const int option : {SO_SNDBUF, SO_RCVBUF}) ::setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
  }
}

/// Blocks the loop thread of `rank`, so that it takes nothing from its links, until `release` is counted down.
void hold_loop(Ranks& ranks, int rank, std::latch& release) {
  const auto held = std::make_shared<std::latch>(1);
  ranks.context(rank)->endpoint().loop().post([held, &release] {
    held->count_down();
    release.wait();
  });
  held->wait();
}

struct CountDown {
  std::latch& latch;
  ~CountDown() { latch.count_down(); }
};

/// Completions of one rank; get() waits for a result or throws the error.
class Result {
 public:
  Completion completion() {
    return [this](std::exception_ptr error) { error ? promise_.set_exception(error) : promise_.set_value(); };
  }
  ReceiveCompletion receive_completion() {
    return [this](std::exception_ptr error, int) { completion()(error); };
  }
  std::future<void> future() { return promise_.get_future(); }
  void get() { future().get(); }

 private:
  std::promise<void> promise_;
};

// Most of the last broadcast is still in the root's own queue when the root leaves.
TEST(Leaving, TheLastBroadcastArrives) {
  std::latch release(1);
  auto ranks = make("AB", transport::TransportChoice::kTcp);
  ranks.run_ok([](Group& group) { group.barrier(); });
  make_sockets_small();
  hold_loop(ranks, 1, release);
  ranks.run_ok([&](Group& group) {
    std::vector<float> data(kTransferBytes / sizeof(float), group.rank() == 0 ? 2.0f : 0.0f);
    if (group.rank() == 1) {
      group.run(broadcast(data, 0));
      EXPECT_EQ(std::count(data.begin(), data.end(), 2.0f), static_cast<std::ptrdiff_t>(data.size()));
      return;
    }
    const CountDown at_the_end{release};
    group.run(broadcast(data, 0));
    group.shutdown();
  });
}

TEST(Leaving, TheLastMessageArrives) {
  std::latch release(1);
  auto ranks = make("AB", transport::TransportChoice::kTcp);
  ranks.run_ok([](Group& group) { group.barrier(); });
  make_sockets_small();
  ranks.run_ok([&](Group& group) {
    std::vector<std::byte> large(kTransferBytes, group.rank() == 0 ? std::byte{7} : std::byte{0});
    std::byte small{};
    Result first, second;
    if (group.rank() == 0) {
      const CountDown at_the_end{release};
      group.send(1, 1, DataType::kUInt8, large, {}, second.completion());
      group.send(1, 2, DataType::kUInt8, {&small, 1}, {}, first.completion());
      first.get();
      second.get();
      group.shutdown();
      return;
    }
    group.receive(0, 2, DataType::kUInt8, {&small, 1}, {}, first.receive_completion());
    first.get();  // so the large one was announced, and is granted by the thread that receives it
    hold_loop(ranks, 1, release);
    group.receive(0, 1, DataType::kUInt8, large, {}, second.receive_completion());
    second.get();
    EXPECT_EQ(std::count(large.begin(), large.end(), std::byte{7}), static_cast<std::ptrdiff_t>(large.size()));
  });
}

// A completion may release the last reference to the group, whose threads must have ended by then.
TEST(Leaving, NoCompletionRunsWhenAGroupHasShutDown) {
  auto ranks = make("AB", transport::TransportChoice::kAuto);
  std::latch posted(1);
  std::promise<void> over;
  std::promise<bool> outlived;
  ranks.run_ok([&](Group& group) {
    std::byte data{};
    if (group.rank() == 1) {
      posted.wait();
      Result sent;
      group.send(0, 1, DataType::kUInt8, {&data, 1}, {}, sent.completion());
      sent.get();
      return;
    }
    std::latch arrived(1);
    group.receive(1, 1, DataType::kUInt8, {&data, 1}, {}, [&](const std::exception_ptr&, int) {
      arrived.count_down();
      while (!group.error()) std::this_thread::yield();
      outlived.set_value(over.get_future().wait_for(milliseconds(200)) == std::future_status::ready);
    });
    posted.count_down();
    arrived.wait();
    group.shutdown();
    over.set_value();
  });
  EXPECT_FALSE(outlived.get_future().get());
}

TEST(Leaving, AMonitoredBarrierNamesWhoHasLeft) {
  for (const bool others_are_late : {false, true}) {
    auto ranks = make("AAAA", transport::TransportChoice::kAuto);
    ranks.run_ok([](Group& group) { group.barrier(); });
    ranks.group(2).shutdown();
    const auto errors = ranks.run([&](Group& group) {
      if (group.rank() == 2 || (others_are_late && group.rank() == 3)) return;
      group.monitored_barrier(milliseconds(others_are_late ? 2000 : 10000), true);
    });
    const std::string expected = others_are_late ? "rank 2, 3 did not reach it" : "rank 2 has left the group";
    for (const int rank : {0, 1}) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_NE(error.find(expected), std::string::npos) << "rank " << rank << " said: " << error;
    }
  }
}

// Neither of the two waits for the rank that has left, and no frame comes that would reveal the difference.
TEST(Leaving, TheOthersStillLearnThatTheyCallDifferentThings) {
  auto ranks = make("AAA", transport::TransportChoice::kAuto);
  ranks.run_ok([](Group& group) { group.barrier(); });
  ranks.group(2).shutdown();
  const auto started = Clock::now();
  const auto errors = ranks.run([](Group& group) {
    if (group.rank() == 2) return;
    Result left;
    std::byte never{};
    group.receive(2, 1, DataType::kUInt8, {&never, 1}, {}, left.receive_completion());
    EXPECT_THROW(left.get(), Error);  // it is known here that rank 2 has left
    std::vector<float> data(100);
    group.run(broadcast(data, 1 - group.rank()));
  });
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(5));
  for (const int rank : {0, 1}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_NE(error.find("root"), std::string::npos) << "rank " << rank << " said: " << error;
    EXPECT_EQ(error.find("timed out"), std::string::npos) << "rank " << rank << " said: " << error;
  }
}

/// Counts the parts of rings in shared memory that this process maps.
std::size_t mapped_rings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:atoll ") != std::string::npos ? 1 : 0;
  return count;
}

// Rank 1 opens a channel to rank 2 for a message that may come from any rank. Rank 2 does nothing in these groups, and
// has perhaps left by then.
TEST(Leaving, ChannelsThatOnlyAnotherRankHasOpenedAreClosed) {
  auto ranks = make("AAA", transport::TransportChoice::kShm);
  ranks.run_ok([](Group& group) {  // links and rings between all ranks
    std::array<std::byte, 4> data{};
    std::array<Result, 4> results;
    for (std::size_t i = 0; i < 2; ++i) {
      const int peer = (group.rank() + 1 + static_cast<int>(i)) % 3;
      group.send(peer, 1, DataType::kUInt8, {&data[i], 1}, {}, results[i].completion());
      group.receive(peer, 1, DataType::kUInt8, {&data[2 + i], 1}, {}, results[2 + i].receive_completion());
    }
    for (Result& result : results) result.get();
  });
  const std::size_t before = mapped_rings();
  for (int i = 0; i < 5; ++i) {
    ranks.run_ok([&](Group& world) {
      GroupOptions options = world.options();
      options.name = "group " + std::to_string(i);
      Group group(ranks.context(world.rank()), ranks.store(), options);
      std::byte data{};
      Result result;
      if (group.rank() == 0) group.send(1, 1, DataType::kUInt8, {&data, 1}, {}, result.completion());
      if (group.rank() == 1)
        group.receive(kAnySource, 1, DataType::kUInt8, {&data, 1}, {}, result.receive_completion());
      if (group.rank() != 2) result.get();
      group.shutdown();
    });
  }
  wait_until("the rings to be unmapped", [&] { return mapped_rings() == before; });
}

class LostBefore : public ::testing::TestWithParam<transport::TransportChoice> {};

// The groups that existed then were notified of the link's end; a later group is notified as well.
TEST_P(LostBefore, ANewGroupHearsOfALinkThatHadFailed) {
  auto ranks = make("AB", GetParam());
  ranks.run_ok([](Group& group) { group.barrier(); });
  ranks.kill(0);
  wait_until("the lost link", [&] { return ranks.group(1).error() != nullptr; });
  Result lost, heard;
  std::byte data{};
  std::array<std::future<std::unique_ptr<Group>>, 2> members;
  for (int rank = 0; rank < 2; ++rank) {
    members[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [&ranks, rank] {
      GroupOptions options;
      options.rank = rank;
      options.size = 2;
      options.name = "second";
      options.timeout = std::chrono::seconds(20);
      return std::make_unique<Group>(ranks.context(rank), ranks.store(), options);
    });
  }
  const auto other = members[0].get();
  const auto group = members[1].get();
  group->when_failed([&] { heard.completion()(nullptr); });
  group->receive(0, 1, DataType::kUInt8, {&data, 1}, {}, lost.receive_completion());
  EXPECT_EQ(heard.future().wait_for(std::chrono::seconds(2)), std::future_status::ready);
  auto received = lost.future();
  ASSERT_EQ(received.wait_for(std::chrono::seconds(2)), std::future_status::ready);
  EXPECT_THROW(received.get(), Error);
}

/// Code that waits on the group's behalf, such as for a library, must be notified, or the group's thread would wait for
/// it forever.
TEST(Leaving, ListenersHearThatOperationsWereUnderWay) {
  for (const bool is_pending : {false, true}) {
    RankOptions options;
    options.islands = layout("AB");
    Ranks ranks(options);
    ranks.group(0).set_timeout(milliseconds(300));
    std::atomic<bool> ends{false};
    std::atomic<bool> was_told{false};
    std::vector<float> data(4);
    Result result;
    ranks.group(0).when_failed([&] {
      was_told = true;
      ends = true;
    });
    if (is_pending) {
      Call call = broadcast(data, 0);
      call.timeout = std::chrono::seconds(30);
      call.progress = loaded_once([&] { return ends.load(); });
      ranks.group(0).submit(std::move(call), result.completion());
    }
    ranks.group(0).shutdown();
    EXPECT_EQ(was_told, is_pending);
    if (is_pending) result.future().wait();
  }
}

INSTANTIATE_TEST_SUITE_P(Links, LostBefore,
                         ::testing::Values(transport::TransportChoice::kShm, transport::TransportChoice::kTcp),
                         [](const auto& param_info) {
                           return param_info.param == transport::TransportChoice::kShm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace atl::test
