// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace atl {
namespace {

// Every size around the block sizes at every alignment of both ends, with guards on both sides.
TEST(Copy, MovesExactlyTheBytesGiven) {
  constexpr std::size_t kGuard = 64;
  for (const auto copy : {copy_bytes, copy_bytes_streaming}) {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 1300, 4096, 5000}) {
      for (std::size_t shift = 0; shift < 64; shift += 7) {
        std::vector<std::byte> from(bytes + shift + 1);
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
        std::vector<std::byte> to(bytes + 2 * kGuard + 64, std::byte{0xee});
        const std::size_t at = kGuard + (shift * 3) % 64;
        copy(to.data() + at, from.data() + shift, bytes);
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= at && i < at + bytes;
          ASSERT_EQ(to[i], inside ? from[shift + i - at] : std::byte{0xee})
              << bytes << " bytes, shift " << shift << ", at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace atl
