// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/error_of.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMemoryBytes = std::size_t{1} << 20;

std::size_t taken_from_system(const Fd& memory) {
  struct stat facts {};
  EXPECT_EQ(::fstat(memory.get(), &facts), 0);
  return static_cast<std::size_t>(facts.st_blocks) * 512;
}

TEST(Memfd, AllPagesMayBeAllocatedAtOnce) {
  const Fd memory = make_sealed_memfd("atoll-test", kMemoryBytes);
  allocate_pages(memory, kMemoryBytes);
  EXPECT_GE(taken_from_system(memory), kMemoryBytes);
  const Error refused = test::error_of([&] { allocate_pages(memory, 2 * kMemoryBytes); });  // its size is sealed
  EXPECT_EQ(refused.kind(), ErrorKind::kUnavailable);
}

// Where the system may refuse a page that it has promised, touching it would end the process.
TEST(Memfd, PagesAreAllocatedWhenTheyAreTouchedUnlessTheSystemMayRefuseThem) {
  std::ifstream setting("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  ASSERT_TRUE(static_cast<bool>(setting >> mode));
  const Fd memory = make_sealed_memfd("atoll-test", kMemoryBytes);
  EXPECT_EQ(taken_from_system(memory) >= kMemoryBytes, mode == 2);
}

}  // namespace
}  // namespace atl::transport
