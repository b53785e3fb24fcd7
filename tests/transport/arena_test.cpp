// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "atoll/transport/shared_memory.h"
#include "tests/support/error_of.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Allocation {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::byte mark{};
};

bool keeps_its_mark(const Allocation& made) {
  return std::all_of(made.data, made.data + made.bytes, [&](std::byte b) { return b == made.mark; });
}

TEST(Arena, AllocationsNeverOverlap) {
  Arena arena(256 * kMiB);
  std::mt19937 random(7);
  std::vector<Allocation> live;
  for (int step = 0; step < 2000; ++step) {
    if (!live.empty() && random() % 2 == 0) {
      const std::size_t chosen = random() % live.size();
      ASSERT_TRUE(keeps_its_mark(live[chosen])) << "seed 7, step " << step;
      arena.free(live[chosen].data);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
      continue;
    }
    const std::size_t bytes = random() % 3 == 0 ? random() % (2 * kMiB) : random() % 5000;
    Allocation made{static_cast<std::byte*>(arena.allocate(bytes)), bytes, static_cast<std::byte>(step)};
    ASSERT_NE(made.data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made.data) % (bytes >= page_bytes() ? page_bytes() : 64), 0U);
    std::memset(made.data, std::to_integer<int>(made.mark), bytes);
    live.push_back(made);
  }
  for (const Allocation& made : live) {
    EXPECT_TRUE(keeps_its_mark(made));
    arena.free(made.data);
  }
  EXPECT_EQ(arena.allocated_bytes(), 0U);
}

TEST(Arena, KeepsToItsBudgetAndReusesWhatWasFreed) {
  Arena arena(40 * kMiB);
  void* const first = arena.allocate(20 * kMiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(arena.allocate(30 * kMiB), nullptr);
  EXPECT_EQ(arena.allocate(41 * kMiB), nullptr);
  arena.free(first);
  void* const second = arena.allocate(30 * kMiB);  // the first slab is too small, and given up for it
  EXPECT_NE(second, nullptr);
  EXPECT_LE(arena.mapped_bytes(), 40 * kMiB);
  arena.free(second);
}

TEST(Arena, ReturnsMemoryThatNothingUses) {
  Arena arena(1024 * kMiB);
  std::vector<void*> all;
  for (int i = 0; i < 20; ++i) all.push_back(arena.allocate(20 * kMiB));
  EXPECT_GE(arena.mapped_bytes(), 400 * kMiB);
  for (void* const data : all) arena.free(data);
  EXPECT_LE(arena.mapped_bytes(), 256 * kMiB);
  arena.trim();
  EXPECT_EQ(arena.mapped_bytes(), 0U);
}

TEST(Arena, FindsWhatLiesWithinOneAllocation) {
  Arena arena(64 * kMiB);
  auto* const data = static_cast<std::byte*>(arena.allocate(1000));
  auto* const next = static_cast<std::byte*>(arena.allocate(1000));
  const auto whole = arena.find(data, 1000);
  ASSERT_TRUE(whole);
  const auto part = arena.find(data + 4, 8);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->slab, whole->slab);
  EXPECT_EQ(part->offset, whole->offset + 4);
  EXPECT_FALSE(arena.find(data, 5000));
  EXPECT_FALSE(arena.find(&arena, 1));
  arena.free(data);
  EXPECT_FALSE(arena.find(data, 8));
  EXPECT_TRUE(arena.find(next, 1000));
  arena.free(next);
}

/// A slab as a peer maps it.
class PeerView {
 public:
  PeerView(const Arena& arena, std::uint32_t slab) {
    const auto [memory, bytes] = arena.memory_of(slab);
    check_sealed_memfd(memory, bytes);
    bytes_ = bytes;
    base_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
  }
  ~PeerView() { ::munmap(base_, bytes_); }
  PeerView(const PeerView&) = delete;
  PeerView& operator=(const PeerView&) = delete;

  std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  bool is_retired() const { return reinterpret_cast<const ArenaSlabHeader*>(base_)->is_retired != 0; }

 private:
  std::byte* base_;
  std::size_t bytes_;
};

TEST(Arena, APeerFindsASlabsMemoryAndItsEnd) {
  Arena arena(64 * kMiB);
  auto* const data = static_cast<std::byte*>(arena.allocate(100));
  std::memset(data, 7, 100);
  const ArenaPlace place = arena.find(data, 100).value();
  const PeerView view(arena, place.slab);
  EXPECT_EQ(std::memcmp(view.at(place.offset), data, 100), 0);
  EXPECT_FALSE(view.is_retired());
  arena.free(data);
  arena.trim();
  EXPECT_TRUE(view.is_retired());
  EXPECT_EQ(test::error_of([&] { arena.memory_of(place.slab); }).kind(), ErrorKind::kInvalidArgument);
}

// Proves T-11.
TEST(Arena, WhatIsDetachedIsNoLongerThePeers) {
  const std::size_t page = page_bytes();
  const std::size_t bytes = 5 * page + 100;
  Arena arena(64 * kMiB);
  auto* const data = static_cast<std::byte*>(arena.allocate(bytes));
  auto* const other = static_cast<std::byte*>(arena.allocate(100));
  std::memset(data, 7, bytes);
  const ArenaPlace place = arena.find(data, bytes).value();
  const PeerView view(arena, place.slab);
  arena.detach({{place.slab, 1 << 30}, page}, /*keep_content=*/true);  // nothing of this arena
  EXPECT_TRUE(arena.find(data, 8));
  // Parts of two pages.
  arena.detach({{place.slab, place.offset + 2 * page - 8}, page}, /*keep_content=*/true);
  for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], std::byte{7}) << i;
  std::memset(view.at(place.offset), 9, bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    ASSERT_EQ(data[i], i / page == 1 || i / page == 2 ? std::byte{7} : std::byte{9}) << i;
  EXPECT_FALSE(arena.find(data, 8));
  EXPECT_FALSE(arena.find(other, 8));
  auto* const next = static_cast<std::byte*>(arena.allocate(100));
  EXPECT_NE(arena.find(next, 100).value().slab, place.slab);
  EXPECT_FALSE(view.is_retired());
  arena.free(data);
  arena.free(other);
  EXPECT_TRUE(view.is_retired());  // and not kept for later allocations
  arena.free(next);
}

TEST(Arena, AForkedChildSharesTheMemoryAndLeavesTheArenaAlone) {
  Arena arena(64 * kMiB);
  auto* const data = static_cast<std::byte*>(arena.allocate(100));
  const pid_t child = ::fork();
  if (child == 0) {
    data[0] = std::byte{42};
    arena.free(data);
    ::_exit(arena.allocate(10) == nullptr ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(data[0], std::byte{42});
  EXPECT_GE(arena.allocated_bytes(), 100U);
  arena.free(data);
}

}  // namespace
}  // namespace atl::transport
