// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/communicator.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "atoll/sim/library/socket.h"
#include "tests/support/memory_store.h"

namespace atl::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kDevice = std::size_t{64} << 20;

/// One rank: a device of its own and a communicator.
struct Rank {
  Rank(Store& store, CommunicatorOptions options)
      : memory(kDevice), communicator(store, options, [this](int) -> DeviceMemory& {
          if (on_access) on_access();
          return memory;
        }) {}

  Region make(const std::vector<float>& values) {
    const std::size_t bytes = values.size() * sizeof(float);
    const Region region{0, memory.offset_of(memory.allocate(bytes)), bytes};
    if (bytes > 0) std::memcpy(memory.at_offset(region.offset), values.data(), bytes);
    return region;
  }
  std::vector<float> values(const Region& region) {
    std::vector<float> result(region.bytes / sizeof(float));
    if (region.bytes > 0) std::memcpy(result.data(), memory.at_offset(region.offset), region.bytes);
    return result;
  }
  Call call(Operation operation, std::vector<Region> input, std::vector<Region> output = {}, int root = -1) {
    Call made;
    made.operation = operation;
    made.dtype = DataType::kFloat32;
    made.root = root;
    made.input = std::move(input);
    made.output = std::move(output);
    made.sequence = communicator.next_sequence(operation, root);
    made.timeout = 20s;
    return made;
  }
  void run(const Call& what) { communicator.run(what, Clock::now()); }

  DeviceMemory memory;
  std::function<void()> on_access;  // called when the communicator requests the memory
  Communicator communicator;
};

/// Runs body(rank, its number) on `size` threads that have met.
void on_ranks(int size, const std::function<void(Rank&, int)>& body, CommunicatorOptions options = {}) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions mine = options;
      mine.rank = rank;
      mine.size = size;
      mine.timeout = 20s;
      Rank self(store, mine);
      body(self, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Returns the message of the error that `body` throws; "" if it throws none.
std::string error_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* const part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST(Communicator, AllReduceOfAnySizeIsTheSumInPlace) {
  for (const int size : {1, 2, 3}) {
    on_ranks(size, [&](Rank& self, int rank) {
      for (const std::size_t count : {0, 1, 3, 8192, 8193, 300'001}) {
        std::vector<float> mine(count);
        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) {
          const float part = static_cast<float>(i % 1000);
          mine[i] = part * static_cast<float>(rank + 1);
          expected[i] = part * static_cast<float>(size * (size + 1) / 2);
        }
        const Region buffer = self.make(mine);
        self.run(self.call(Operation::kAllReduce, {buffer}));
        ASSERT_EQ(self.values(buffer), expected) << count << " elements on " << size << " ranks";
      }
    });
  }
}

TEST(Communicator, ManyOperationsInARowKeepTheirData) {
  on_ranks(3, [](Rank& self, int rank) {
    const Region buffer = self.make({0});
    for (int i = 0; i < 500; ++i) {
      const float mine = static_cast<float>(i * (rank + 1));
      std::memcpy(self.memory.at_offset(buffer.offset), &mine, sizeof(mine));
      self.run(
          self.call(i % 2 == 0 ? Operation::kAllReduce : Operation::kBroadcast, {buffer}, {}, i % 2 == 0 ? -1 : 2));
      ASSERT_EQ(self.values(buffer)[0], static_cast<float>(i % 2 == 0 ? 6 * i : 3 * i)) << i;
    }
  });
}

TEST(Communicator, OperationsOfDifferentLanesMayEndInAnyOrder) {
  on_ranks(2, [](Rank& self, int rank) {
    const Region first = self.make({1});
    const Region second = self.make({10});
    const Call one = self.call(Operation::kAllReduce, {first});
    const Call two = self.call(Operation::kAllReduce, {second});
    // Each rank begins with a different one: they meet only if both run at the same time.
    std::thread other([&] { self.run(rank == 0 ? two : one); });
    self.run(rank == 0 ? one : two);
    other.join();
    EXPECT_EQ(self.values(first)[0], 2);
    EXPECT_EQ(self.values(second)[0], 20);
  });
}

TEST(Communicator, DifferentCallsAreToldToAllRanks) {
  on_ranks(3, [](Rank& self, int rank) {
    const Region buffer = self.make({1, 2, 3});
    const Call call =
        rank == 1 ? self.call(Operation::kBroadcast, {buffer}, {}, 0) : self.call(Operation::kAllReduce, {buffer});
    const std::string text = error_of([&] { self.run(call); }, ErrorKind::kMismatch);
    expect_has(text, {"sequence 0", "called all_reduce with 3 elements in, float32, sum",
                      "rank 1 called broadcast with 3 elements in, float32, root 0"});
    expect_has(text, {("on rank " + std::to_string(rank)).c_str()});
    EXPECT_NE(error_of([&] { self.run(self.call(Operation::kBarrier, {})); }, ErrorKind::kMismatch), "");
    EXPECT_EQ(self.values(buffer), (std::vector<float>{1, 2, 3})) << "nothing was written";
  });
}

TEST(Communicator, ARankThatNeverComesIsNamedAtTheTimeout) {
  std::atomic<bool> over{false};
  on_ranks(2, [&](Rank& self, int rank) {
    if (rank == 1) {
      over.wait(false);
      return;
    }
    Call call = self.call(Operation::kBarrier, {});
    call.timeout = 100ms;
    const std::string text = error_of([&] { self.run(call); }, ErrorKind::kTimeout);
    expect_has(text, {"barrier, sequence 0", "on rank 0", "timed out after 100 ms", "waiting for rank 1 to call it"});
    over = true;
    over.notify_all();
  });
}

TEST(Communicator, AbortWakesWhoeverWaitsOnAnyRank) {
  on_ranks(3, [](Rank& self, int rank) {
    if (rank == 2) return self.communicator.abort("enough");  // and leaves, so the order does not matter
    const std::string text = error_of([&] { self.run(self.call(Operation::kBarrier, {})); }, ErrorKind::kAborted);
    expect_has(text, {"enough"});
  });
}

TEST(Communicator, ARankThatHasLeftIsNamedWhenItIsNeeded) {
  on_ranks(2, [](Rank& self, int rank) {
    self.run(self.call(Operation::kBarrier, {}));
    if (rank == 1) return self.communicator.leave();
    const std::string text = error_of([&] { self.run(self.call(Operation::kBarrier, {})); }, ErrorKind::kPeerLost);
    expect_has(text, {"sequence 1", "needs rank 1 to call it", "has left the group"});
  });
}

TEST(Communicator, MessagesMatchInOrderAndDoNotWaitForCollectives) {
  on_ranks(2, [](Rank& self, int rank) {
    const Region barrier_first = self.make({0});
    if (rank == 0) {
      for (int i = 0; i < 20; ++i) self.run(self.call(Operation::kSend, {self.make({static_cast<float>(i)})}, {}, 1));
    } else {
      for (int i = 0; i < 20; ++i) {
        const Region target = self.make({-1});
        self.run(self.call(Operation::kReceive, {}, {target}, 0));
        ASSERT_EQ(self.values(target)[0], static_cast<float>(i));
      }
    }
    self.run(self.call(Operation::kAllReduce, {barrier_first}));
  });
}

TEST(Communicator, AMessageOfAnotherSizeIsRefused) {
  on_ranks(2, [](Rank& self, int rank) {
    const std::string text = error_of(
        [&] {
          rank == 0 ? self.run(self.call(Operation::kSend, {self.make({1, 2})}, {}, 1))
                    : self.run(self.call(Operation::kReceive, {}, {self.make({0, 0, 0})}, 0));
        },
        ErrorKind::kMismatch);
    expect_has(text, {"rank 0 sent 2 elements of float32", "rank 1 expects 3 of float32"});
  });
}

TEST(Communicator, ModelledTimeBeginsWithTheLastRankAndIsThatOfTheSlowest) {
  const auto now = Clock::now();
  on_ranks(2, [&](Rank& self, int rank) {
    Call call = self.call(Operation::kBarrier, {});
    call.duration = rank == 0 ? 30min : 5min;
    EXPECT_EQ(self.communicator.run(call, now + (rank == 1 ? 1h : 0h)), now + 1h + 30min);
  });
}

TEST(Communicator, ARankThatNeverJoinsIsNamed) {
  MemoryStore store;
  CommunicatorOptions options;
  options.size = 2;
  options.timeout = 50ms;
  const std::string text = error_of([&] { Rank(store, options); }, ErrorKind::kTimeout);
  expect_has(text, {"rank 0 timed out waiting for rank 1 to join the group"});
}

// Rank 1 has stored its entry, and leaves once it has been greeted.
TEST(Communicator, ARankThatGivesUpBeforeItHasJoinedIsNamedAtOnce) {
  MemoryStore store;
  std::thread joins([&] {
    CommunicatorOptions options;
    options.size = 2;
    options.timeout = 1h;
    const std::string text = error_of([&] { Rank(store, options); }, ErrorKind::kPeerLost);
    expect_has(text, {"rank 1 has given up before it joined rank 0"});
  });
  Fd listener = listen_at("atoll-simccl-" + std::string(32, '0'), 1);
  store.set("rank/1", std::vector<std::byte>(32));
  pollfd greeted{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&greeted, 1, -1), 1);
  listener.reset();
  joins.join();
}

// The reader has passed the meeting and is stopped when the root gives up and reuses its memory.
TEST(Communicator, WhatIsReadOfAMemberThatGaveUpIsAnError) {
  std::promise<void> gone;
  on_ranks(2, [&](Rank& self, int rank) {
    const Region buffer = self.make({rank == 0 ? 7.0F : 0.0F});
    const Call call = self.call(Operation::kBroadcast, {buffer}, {}, 0);
    if (rank == 0) {
      EXPECT_NE(error_of([&] { self.run(call); }, ErrorKind::kAborted), "");
      std::memset(self.memory.at_offset(buffer.offset), 0xEE, buffer.bytes);
      return gone.set_value();
    }
    int looks = 0;  // the first is to publish it, the second to write to it
    self.on_access = [&] {
      if (++looks != 2) return;
      self.communicator.abort("enough");
      gone.get_future().wait();
    };
    EXPECT_NE(error_of([&] { self.run(call); }, ErrorKind::kAborted), "");
    EXPECT_GE(looks, 2);
  });
}

}  // namespace
}  // namespace atl::sim
