// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/hash.h"

#include <gtest/gtest.h>

#include <array>

namespace atl::plan {
namespace {

TEST(Hash, IsFnv) {
  EXPECT_EQ(hash_of(std::string_view()), 0xcbf29ce484222325U);
  EXPECT_EQ(hash_of("foobar"), 0x85944171f73967e8U);
  const std::array<std::int64_t, 1> letters{0x6162};  // "ba" and six zero bytes
  EXPECT_EQ(hash_of(letters), hash_of(std::string_view("ba\0\0\0\0\0\0", 8)));
}

}  // namespace
}  // namespace atl::plan
