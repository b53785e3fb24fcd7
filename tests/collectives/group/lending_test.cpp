// SPDX-License-Identifier: Apache-2.0
// Collectives on memory that peers read where it lies, when something goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "atoll/collectives/peer_ports.h"
#include "atoll/transport/shared_memory.h"
#include "tests/collectives/group/calls.h"
#include "tests/support/error_of.h"
#include "tests/support/log_recorder.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/peers.h"
#include "tests/support/ranks.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using namespace std::chrono_literals;

constexpr std::size_t kCount = 700'001;

/// Numbers in the arena of a rank.
class Lent {
 public:
  Lent(Ranks& ranks, int rank, float value)
      : arena_(ranks.context(rank)->endpoint().options().arena),
        data_(static_cast<float*>(arena_->allocate(kCount * sizeof(float)))) {
    fill(value);
  }
  ~Lent() { arena_->free(data_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  void fill(float value) { std::fill(data_, data_ + kCount, value); }
  bool holds(float value) const {
    return std::all_of(data_, data_ + kCount, [&](float v) { return v == value; });
  }
  Call all_reduce(std::optional<std::chrono::milliseconds> timeout = {}) {
    Call call;
    call.input = call.output = {{reinterpret_cast<std::byte*>(data_), kCount * sizeof(float)}};
    call.timeout = timeout;
    return call;
  }

 private:
  std::shared_ptr<transport::Arena> arena_;
  float* data_;
};

/// Rank 1 of two, played by the test over the group's channels to rank 0.
class PlayedRank {
 public:
  PlayedRank(Ranks& ranks, std::uint64_t group_id)
      : endpoint_(ranks.context(1)->endpoint()),
        ports_(endpoint_, group_id, {ranks.context(0)->endpoint().address(), endpoint_.address()}, 1) {}

  transport::Channel& channel(Port port) { return ports_.open(0, port); }

  /// Waits for rank 0's next contribution, and leaves it in its channel.
  transport::FrameHeader contribution() {
    const transport::Frame* frame = nullptr;
    wait_on_bell(endpoint_, transport::Bell::kCollective, "a contribution",
                 [&] { return (frame = channel(Port::kUp).front()); });
    return frame->header;
  }

 private:
  transport::Endpoint& endpoint_;
  PeerPorts ports_;
};

RankOptions with_arenas(const char* letters) {
  RankOptions options;
  options.islands = layout(letters);
  options.arena_bytes = std::size_t{64} << 20;
  return options;
}

// Proves C-11.
TEST(LendingGroup, MemoryIsFreeAfterARefusal) {
  for (const auto* letters : {"AA", "AAA", "ABAB"}) {
    SCOPED_TRACE(letters);
    Ranks ranks(with_arenas(letters));
    ranks.run_ok([&](Group& group) {
      Lent data(ranks, group.rank(), 1.0f);
      const auto size = static_cast<float>(group.size());
      for (int round = 0; round < 20; ++round) {
        if (group.rank() == round % group.size()) {
          group.refuse("no such tensor");
        } else {
          EXPECT_EQ(error_of([&] { group.run(data.all_reduce()); }).kind(), ErrorKind::kMismatch);
        }
        data.fill(static_cast<float>(round));  // while others may still read what was lent to the refused operation
        group.run(data.all_reduce());
        EXPECT_TRUE(data.holds(static_cast<float>(round) * size)) << "rank " << group.rank() << ", round " << round;
      }
    });
  }
}

TEST(LendingGroup, ARankThatComesTooLateGetsAnErrorAndNoValues) {
  Ranks ranks(with_arenas("AA"));
  ranks.run_ok([](Group& group) { group.barrier(); });
  std::latch given_up(1);
  ranks.run_ok([&](Group& group) {
    Lent data(ranks, group.rank(), 1.0f);
    if (group.rank() == 0) {
      EXPECT_EQ(error_of([&] { group.run(data.all_reduce(200ms)); }).kind(), ErrorKind::kTimeout);
      data.fill(1000.0f);
      given_up.count_down();
    } else {
      given_up.wait();
      EXPECT_THAT([&] { group.run(data.all_reduce()); }, ::testing::Throws<Error>());
    }
  });
}

// Rank 1 is played by the test, which stops where a rank writes a result into rank 0's memory.
// Proves C-11.
TEST(LendingGroup, APeerThatIsStoppedWhileItWritesChangesNothing) {
  Ranks ranks(with_arenas("AA"));
  ranks.run_ok([](Group& group) { group.barrier(); });
  std::latch used_again(1);
  std::latch written(1);
  ranks.run_ok([&](Group& group) {
    if (group.rank() == 0) {
      Lent data(ranks, 0, 1.0f);
      EXPECT_EQ(error_of([&] { group.run(data.all_reduce(500ms)); }).kind(), ErrorKind::kTimeout);
      EXPECT_TRUE(data.holds(1.0f));
      data.fill(7.0f);
      used_again.count_down();
      written.wait();
      EXPECT_TRUE(data.holds(7.0f));
      return;
    }
    PlayedRank played(ranks, group.id());
    const transport::FrameHeader header = played.contribution();
    EXPECT_EQ(header.where, transport::Payload::kForResult);
    std::byte* const memory = played.channel(Port::kUp).begin_write();
    ASSERT_NE(memory, nullptr);
    used_again.wait();
    // The rest of the tensor has not been copied: it is still shared.
    const std::size_t far_enough = 2 * transport::page_bytes();
    EXPECT_GE(header.offset, far_enough);
    float before = 0;
    std::memcpy(&before, memory - far_enough, sizeof before);
    EXPECT_EQ(before, 7.0f);
    std::fill(memory, memory + header.payload_bytes, std::byte{9});
    played.channel(Port::kUp).end_write();
    written.count_down();
  });
}

// Rank 1 is played by the test, which claims that bytes are in rank 0's memory although rank 0 has lent none.
TEST(LendingGroup, AFrameWithoutItsPayloadIsAProtocolError) {
  for (const Port port : {Port::kUp, Port::kDown}) {
    Ranks ranks(with_arenas("AA"));
    ranks.run_ok([](Group& group) { group.barrier(); });
    ranks.run_ok([&](Group& group) {
      if (group.rank() == 0) {
        std::vector<float> data(kCount, 1.0f);
        EXPECT_EQ(error_of([&] { group.run(all_reduce(data)); }).kind(), ErrorKind::kProtocol);
        return;
      }
      PlayedRank played(ranks, group.id());
      transport::FrameHeader header = played.contribution();
      header.where = transport::Payload::kThere;
      if (port == Port::kUp) header.offset = 0;  // of the first chunk, which rank 0 owns
      EXPECT_TRUE(played.channel(port).try_lend(header, std::vector<std::byte>(header.payload_bytes), {}));
    });
  }
}

TEST(LendingGroup, ARankWithoutDescriptorsLendsNothingAndWarnsOnce) {
  const LogRecorder lines;
  Ranks ranks(with_arenas("AA"));
  ranks.run_ok([](Group& group) {  // opens all channels
    std::vector<float> ordinary(kCount, 1.0f);
    group.run(all_reduce(ordinary));
  });
  Lent first(ranks, 0, 1.0f);
  Lent second(ranks, 1, 1.0f);
  {
    const NoNewDescriptors none;
    ranks.run_ok([&](Group& group) { group.run((group.rank() == 0 ? first : second).all_reduce()); });
  }
  EXPECT_TRUE(first.holds(2.0f));
  EXPECT_TRUE(second.holds(2.0f));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(lines.count("tensors for rank " + std::to_string(rank) + " are copied"), 1U) << lines.text();
    EXPECT_EQ(ranks.group(rank).time_split().bytes_lent, 0U);
  }
}

// Proves C-5.
TEST(LendingGroup, ADeadLenderIsAnError) {
  Ranks ranks(with_arenas("AAA"));
  ranks.run_ok([](Group& group) { group.barrier(); });
  std::latch begun(3);
  ranks.run_ok([&](Group& group) {
    Lent data(ranks, group.rank(), 1.0f);
    begun.arrive_and_wait();
    if (group.rank() == 2) return ranks.kill(2);
    const Error error = error_of([&] { group.run(data.all_reduce()); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
  });
}

TEST(LendingGroup, AnotherThreadMayReadTheTimes) {
  Ranks ranks(with_arenas("AA"));
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    std::uint64_t lent = 0;
    while (!is_over) {
      const std::uint64_t now = ranks.group(0).time_split().bytes_lent;
      EXPECT_GE(now, lent);
      lent = now;
    }
  });
  ranks.run_ok([&](Group& group) {
    Lent data(ranks, group.rank(), 1.0f);
    for (int round = 0; round < 20; ++round) group.run(data.all_reduce());
  });
  is_over = true;
  reader.join();
  EXPECT_EQ(ranks.group(0).time_split().operations, 20U);
}

TEST(LendingGroup, ChecksumsOfLentDataAreRight) {
  RankOptions options = with_arenas("AAB");
  options.check_data = true;
  Ranks ranks(options);
  ranks.run_ok([&](Group& group) {
    Lent data(ranks, group.rank(), 2.0f);
    group.run(data.all_reduce());
    group.run(data.all_reduce());
    EXPECT_TRUE(data.holds(18.0f));
    EXPECT_GT(group.time_split().bytes_lent, 0U);
  });
}

}  // namespace
}  // namespace atl::test
