// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/chunk_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "tests/transport/link_contract.h"

namespace atl::test {
namespace {

using transport::ChunkRing;
using transport::DirectBuffer;
using transport::DirectPort;
using transport::MemoryKind;
using transport::RingMemory;

/// A path and a device whose steps end when the test wants it, in any order.
class Steps : public DirectPort {
 public:
  explicit Steps(unsigned seed) : random_(seed) {}

  bool reaches(MemoryKind) const noexcept override { return true; }
  void send(std::uint64_t number, const DirectBuffer& from, Done done) override {
    sends_[number].push_back({from, std::move(done)});
    match(number);
  }
  void receive(std::uint64_t number, const DirectBuffer& to, Done done) override {
    receives_[number].push_back({to, std::move(done)});
    match(number);
  }
  void remember(const DirectBuffer& memory) override { remembered.push_back(memory); }
  void forget(const DirectBuffer& memory) override {
    std::erase_if(remembered, [&](const DirectBuffer& each) { return each.data == memory.data; });
  }
  void copy(void* to, const void* from, std::size_t bytes, RingMemory::Copied copied) {
    if (fails_after-- == 0) {
      ready_.push_back([copied] {
        const Error error(ErrorKind::kUnavailable, "the device is gone");
        copied(&error);
      });
      return;
    }
    ready_.push_back([=] {
      if (bytes != 0) std::memcpy(to, from, bytes);
      copied(nullptr);
    });
  }

  /// Ends one step; false when none is under way.
  bool step() {
    if (ready_.empty()) return false;
    std::swap(ready_[random_() % ready_.size()], ready_.back());
    const auto next = std::move(ready_.back());
    ready_.pop_back();
    next();
    return true;
  }

  /// Sends or receives that the other side has not matched.
  std::size_t waiting(ChunkRing::Direction direction) const {
    std::size_t count = 0;
    for (const auto& [number, each] : direction == ChunkRing::Direction::kSend ? sends_ : receives_)
      count += each.size();
    return count;
  }

  /// The link ends.
  void end_all() {
    const Error error(ErrorKind::kPeerLost, "the link is gone");
    for (auto* ends : {&sends_, &receives_}) {
      for (auto& [number, each] : std::exchange(*ends, {})) {
        for (const End& end : each) end.done(&error);
      }
    }
  }

  std::vector<DirectBuffer> remembered;
  std::size_t fails_after = std::size_t{1} << 40;
  std::size_t wrong_sizes = 0;
  int given_up = 0;

 private:
  struct End {
    DirectBuffer buffer;
    Done done;
  };
  void match(std::uint64_t number) {
    auto& out = sends_[number];
    auto& in = receives_[number];
    if (out.empty() || in.empty()) return;
    const End from = std::move(out.front());
    const End to = std::move(in.front());
    out.pop_front();
    in.pop_front();
    if (from.buffer.bytes != to.buffer.bytes) ++wrong_sizes;
    // The two ends are notified separately.
    ready_.push_back([=, this] {
      if (from.buffer.bytes != 0) std::memcpy(to.buffer.data, from.buffer.data, from.buffer.bytes);
      ready_.push_back([from] { from.done(nullptr); });
      to.done(nullptr);
    });
  }

  std::mt19937 random_;
  std::map<std::uint64_t, std::deque<End>> sends_;
  std::map<std::uint64_t, std::deque<End>> receives_;
  std::vector<std::function<void()>> ready_;
};

/// Memory of the device for a ring.
class Chunks : public RingMemory {
 public:
  Chunks(Steps& steps, std::size_t bytes) : steps_(steps), bytes_(bytes) {}
  DirectBuffer buffer() const noexcept override {
    return {const_cast<std::byte*>(bytes_.data()), bytes_.size(), MemoryKind::kCuda};
  }
  void copy(void* to, const void* from, std::size_t bytes, Copied copied) override {
    steps_.copy(to, from, bytes, std::move(copied));
  }
  void give_up() noexcept override { ++steps_.given_up; }

 private:
  Steps& steps_;
  std::vector<std::byte> bytes_;
};

std::shared_ptr<ChunkRing> new_ring(Steps& steps, ChunkRing::Direction direction, std::size_t bytes,
                                    std::size_t chunk) {
  return ChunkRing::make(steps, std::make_shared<Chunks>(steps, bytes), direction, chunk);
}

DirectBuffer device_buffer(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size(), MemoryKind::kCuda}; }

TEST(ChunkRing, MessagesArriveWhateverTheOrderOfTheSteps) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Steps steps(seed);
    constexpr std::size_t kChunk = 64;
    const auto out = new_ring(steps, ChunkRing::Direction::kSend, kChunk * (1 + random() % 4), kChunk);
    const auto in = new_ring(steps, ChunkRing::Direction::kReceive, kChunk * (1 + random() % 4), kChunk);
    EXPECT_EQ(steps.remembered.size(), 2U);
    const std::size_t sizes[] = {0, 1, 63, 64, 65, 128, 1000, 0, 64};
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::vector<std::byte>> got;
    for (const std::size_t bytes : sizes) {
      sent.push_back(pattern(bytes + seed, bytes));
      got.emplace_back(bytes);
    }
    std::size_t done = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const auto note = [&done](const Error* problem) {
        EXPECT_EQ(problem, nullptr);
        ++done;
      };
      out->pass(i % 2, device_buffer(sent[i]), note);
      for (unsigned n = random() % 5; n != 0; --n) steps.step();
      in->pass(i % 2, device_buffer(got[i]), note);
    }
    while (steps.step()) {
    }
    EXPECT_EQ(done, 2 * sent.size());
    EXPECT_EQ(steps.wrong_sizes, 0U);
    EXPECT_EQ(got, sent);
  }
}

TEST(ChunkRing, AFailedCopyEndsItsMessageAlone) {
  Steps steps(1);
  {
    const auto out = new_ring(steps, ChunkRing::Direction::kSend, 128, 64);
    auto bytes = pattern(1, 500);
    steps.fails_after = 2;
    std::vector<std::optional<ErrorKind>> ends;
    const auto note = [&ends](const Error* problem) {
      ends.push_back(problem != nullptr ? std::optional(problem->kind()) : std::nullopt);
    };
    std::vector<std::byte> sink(500);
    for (int i = 0; i < 8; ++i) steps.receive(1, {sink.data(), 64, MemoryKind::kCuda}, [](const Error*) {});
    out->pass(1, device_buffer(bytes), note);
    while (steps.step()) {
    }
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0], ErrorKind::kUnavailable);
    // The ring is as good as new.
    out->pass(2, {bytes.data(), 64, MemoryKind::kCuda}, note);
    steps.receive(2, {sink.data(), 64, MemoryKind::kCuda}, [](const Error*) {});
    while (steps.step()) {
    }
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_FALSE(ends[1].has_value());
  }
  EXPECT_TRUE(steps.remembered.empty());
}

TEST(ChunkRing, TheLastEndOfAMessageMayEndTheRing) {
  Steps steps(1);
  auto ring = new_ring(steps, ChunkRing::Direction::kReceive, 128, 64);
  auto bytes = pattern(1, 100);
  std::vector<std::byte> got(100);
  steps.send(1, {bytes.data(), 64, MemoryKind::kCuda}, [](const Error*) {});
  steps.send(1, {bytes.data() + 64, 36, MemoryKind::kCuda}, [](const Error*) {});
  ring->pass(1, device_buffer(got), [&ring](const Error* problem) {
    EXPECT_EQ(problem, nullptr);
    ring.reset();
  });
  while (steps.step()) {
  }
  EXPECT_TRUE(ring == nullptr);
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(steps.remembered.empty());
}

// After abandon(), every message ends as soon as no copy touches its memory, even if the network never finishes.
TEST(ChunkRing, AbandonedMessagesEndWithoutThePeer) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Steps steps(seed);
    const auto direction = random() % 2 == 0 ? ChunkRing::Direction::kSend : ChunkRing::Direction::kReceive;
    auto ring = new_ring(steps, direction, 192, 64);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::vector<std::byte>> theirs(20, std::vector<std::byte>(64));
    for (std::size_t each : {200, 64, 0, 300}) bytes.emplace_back(each);
    std::size_t ended = 0;
    std::size_t failed = 0;
    const auto note = [&](const Error* problem) {
      ++ended;
      if (problem != nullptr) {
        EXPECT_EQ(problem->kind(), ErrorKind::kAborted);
        ++failed;
      }
    };
    for (std::size_t i = 0; i < bytes.size(); ++i) ring->pass(i, device_buffer(bytes[i]), note);
    const std::size_t matched = random() % 4;  // chunks of the first message that the peer takes or sends
    const std::size_t sizes[] = {64, 64, 64, 8};
    for (std::size_t i = 0; i < matched; ++i) {
      const DirectBuffer end{theirs[i].data(), sizes[i], MemoryKind::kCuda};
      direction == ChunkRing::Direction::kSend ? steps.receive(0, end, [](const Error*) {})
                                               : steps.send(0, end, [](const Error*) {});
    }
    for (unsigned n = random() % 12; n != 0 && steps.step(); --n) {
    }
    ring->abandon(Error(ErrorKind::kAborted, "enough"));
    EXPECT_EQ(steps.given_up, 1);
    ring->pass(9, device_buffer(bytes[0]), note);
    while (steps.step()) {  // copies, and what the network had matched
    }
    EXPECT_EQ(ended, bytes.size() + 1);
    EXPECT_GE(failed, bytes.size());
    // Messages that the peer never took still hold the chunks.
    const bool idle = steps.waiting(direction) == 0;
    EXPECT_EQ(steps.remembered.empty(), idle);
    ring.reset();
    steps.end_all();
    EXPECT_TRUE(steps.remembered.empty());
    EXPECT_EQ(ended, bytes.size() + 1);
  }
}

TEST(ChunkRing, ARingWithoutAChunkIsRefused) {
  Steps steps(1);
  EXPECT_THROW(new_ring(steps, ChunkRing::Direction::kSend, 63, 64), Error);
  EXPECT_THROW(new_ring(steps, ChunkRing::Direction::kSend, 63, 0), Error);
  EXPECT_TRUE(steps.remembered.empty());
}

}  // namespace
}  // namespace atl::test
