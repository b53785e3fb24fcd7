// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/memory.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstring>
#include <random>
#include <vector>

#include "atoll/core/error.h"

namespace atl::sim {
namespace {

TEST(DeviceMemory, HoldsWhatTheDeviceWrites) {
  DeviceMemory memory(1 << 20);
  void* const a = memory.allocate(1000);
  void* const b = memory.allocate(0);
  EXPECT_NE(a, b);
  EXPECT_TRUE(memory.contains(a));
  EXPECT_FALSE(memory.contains(&memory));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % kMemoryAlignment, 0U);
  std::memset(memory.host_view(a), 7, 1000);
  EXPECT_EQ(memory.host_view(static_cast<std::byte*>(a) + 999)[0], std::byte{7});
  EXPECT_EQ(memory.stats().allocated, 1024U + 512U);
}

// Proves M-2.
TEST(DeviceMemoryDeathTest, HostCodeCannotTouchIt) {
  DeviceMemory memory(1 << 20);
  auto* const bytes = static_cast<volatile char*>(memory.allocate(8));
  EXPECT_DEATH(bytes[0] = 1, "");
}

TEST(DeviceMemory, ReleasedBytesArePoisoned) {
  DeviceMemory memory(8 << 20);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
    void* const at = memory.allocate(bytes);
    std::memset(memory.host_view(at), 1, bytes);
    memory.release(at);
    EXPECT_NE(memory.host_view(at)[0], std::byte{1});
  }
}

TEST(DeviceMemory, RetiredBytesAreHeldUntilTheyAreReleased) {
  DeviceMemory memory(1 << 20);
  void* const kept = memory.allocate(1 << 19);
  void* const gone = memory.allocate(1 << 18);
  memory.retire(gone);
  memory.retire(gone);
  EXPECT_EQ(memory.stats().allocated, std::size_t{1} << 19);
  EXPECT_EQ(memory.stats().held, (std::size_t{1} << 19) + (std::size_t{1} << 18));
  EXPECT_THROW(memory.allocate(1 << 19), Error) << "held memory is not allocated again";
  memory.release(gone);
  EXPECT_EQ(memory.stats().allocated, std::size_t{1} << 19);
  EXPECT_EQ(memory.stats().held, std::size_t{1} << 19);
  memory.release(kept);
  EXPECT_EQ(memory.stats().allocated, 0U);
  EXPECT_EQ(memory.stats().held, 0U);
  EXPECT_EQ(memory.stats().peak, (std::size_t{1} << 19) + (std::size_t{1} << 18));
}

TEST(DeviceMemory, TooMuchIsNamed) {
  DeviceMemory memory(1 << 20);
  void* const half = memory.allocate(1 << 19);
  try {
    memory.allocate(1 << 20);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
  }
  memory.release(half);
  memory.release(memory.allocate(1 << 20));
}

TEST(DeviceMemory, RandomUseNeitherOverlapsNorLeaks) {
  constexpr std::size_t kCapacity = std::size_t{4} << 20;
  DeviceMemory memory(kCapacity);
  struct Block {
    void* at;
    std::size_t bytes;
    std::byte value;
  };
  std::vector<Block> blocks;
  std::mt19937 random(1);
  const auto check_and_release = [&](std::size_t i) {
    const std::byte* const view = memory.host_view(blocks[i].at);
    ASSERT_TRUE(std::all_of(view, view + blocks[i].bytes, [&](std::byte b) { return b == blocks[i].value; }));
    memory.release(blocks[i].at);
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int step = 0; step < 5000; ++step) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 2 == 0)) {
      ASSERT_NO_FATAL_FAILURE(check_and_release(random() % blocks.size()));
      continue;
    }
    const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 60000 : 2000);
    const Block block{memory.allocate(bytes), bytes, static_cast<std::byte>(random() % 200)};
    std::memset(memory.host_view(block.at), static_cast<int>(block.value), bytes);
    blocks.push_back(block);
  }
  while (!blocks.empty()) ASSERT_NO_FATAL_FAILURE(check_and_release(0));
  EXPECT_EQ(memory.stats().allocated, 0U);
  memory.release(memory.allocate(kCapacity));  // all ranges have been merged
}

// Small allocations at always different places would in time touch every page.
TEST(DeviceMemory, FreeRangesKeepFewPages) {
  DeviceMemory memory(std::size_t{256} << 20);
  constexpr std::size_t kSmall = std::size_t{512} << 10;
  std::vector<void*> blocks(400);
  for (void*& at : blocks) {
    at = memory.allocate(kSmall);
    std::memset(memory.host_view(at), 1, kSmall);
  }
  for (void* const at : blocks) memory.release(at);
  struct stat file {};
  ASSERT_EQ(::fstat(memory.descriptor(), &file), 0);
  EXPECT_EQ(memory.stats().held, 0U);
  EXPECT_LE(static_cast<std::size_t>(file.st_blocks) * 512, kMaxKept + (std::size_t{1} << 20));
  memory.empty_cache();
  ASSERT_EQ(::fstat(memory.descriptor(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0);
}

}  // namespace
}  // namespace atl::sim
