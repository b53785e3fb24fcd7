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
using transport::MemoryCopier;
using transport::MemoryKind;

/// A path and a device whose steps end when the test wants it, in any order.
class Steps : public DirectPort, public MemoryCopier {
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
  void copy(void* to, const void* from, std::size_t bytes, Copied copied) override {
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

  std::vector<DirectBuffer> remembered;
  std::size_t fails_after = std::size_t{1} << 40;
  std::size_t wrong_sizes = 0;

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
    // The two ends hear of it apart.
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

DirectBuffer buffer_of(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size(), MemoryKind::kCuda}; }

TEST(ChunkRing, MessagesArriveWhateverTheOrderOfTheSteps) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Steps steps(seed);
    constexpr std::size_t kChunk = 64;
    std::vector<std::byte> out_memory(kChunk * (1 + random() % 4));
    std::vector<std::byte> in_memory(kChunk * (1 + random() % 4));
    ChunkRing out(steps, steps, ChunkRing::Direction::kSend, buffer_of(out_memory), kChunk);
    ChunkRing in(steps, steps, ChunkRing::Direction::kReceive, buffer_of(in_memory), kChunk);
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
      out.pass(i % 2, buffer_of(sent[i]), note);
      for (unsigned n = random() % 5; n != 0; --n) steps.step();
      in.pass(i % 2, buffer_of(got[i]), note);
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
  std::vector<std::byte> memory(128);
  {
    ChunkRing out(steps, steps, ChunkRing::Direction::kSend, buffer_of(memory), 64);
    auto bytes = pattern(1, 500);
    steps.fails_after = 2;
    std::vector<std::optional<ErrorKind>> ends;
    const auto note = [&ends](const Error* problem) {
      ends.push_back(problem != nullptr ? std::optional(problem->kind()) : std::nullopt);
    };
    std::vector<std::byte> sink(500);
    for (int i = 0; i < 8; ++i) steps.receive(1, {sink.data(), 64, MemoryKind::kCuda}, [](const Error*) {});
    out.pass(1, buffer_of(bytes), note);
    while (steps.step()) {
    }
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0], ErrorKind::kUnavailable);
    // The ring is as good as new.
    out.pass(2, {bytes.data(), 64, MemoryKind::kCuda}, note);
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
  std::vector<std::byte> memory(128);
  auto ring =
      std::make_unique<ChunkRing>(steps, steps, ChunkRing::Direction::kReceive, buffer_of(memory), std::size_t{64});
  auto bytes = pattern(1, 100);
  std::vector<std::byte> got(100);
  steps.send(1, {bytes.data(), 64, MemoryKind::kCuda}, [](const Error*) {});
  steps.send(1, {bytes.data() + 64, 36, MemoryKind::kCuda}, [](const Error*) {});
  ring->pass(1, buffer_of(got), [&ring](const Error* problem) {
    EXPECT_EQ(problem, nullptr);
    ring.reset();
  });
  while (steps.step()) {
  }
  EXPECT_TRUE(ring == nullptr);
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(steps.remembered.empty());
}

TEST(ChunkRing, ARingWithoutAChunkIsRefused) {
  Steps steps(1);
  std::vector<std::byte> memory(63);
  EXPECT_THROW(ChunkRing(steps, steps, ChunkRing::Direction::kSend, buffer_of(memory), 64), Error);
  EXPECT_THROW(ChunkRing(steps, steps, ChunkRing::Direction::kSend, buffer_of(memory), 0), Error);
  EXPECT_TRUE(steps.remembered.empty());
}

}  // namespace
}  // namespace atl::test
