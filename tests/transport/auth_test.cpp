// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/auth.h"

#include <gtest/gtest.h>

#include <string>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"

namespace atl::transport {
namespace {

std::string hexadecimal(const Mac& mac) {
  std::string text;
  for (const auto byte : mac) {
    text += "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  return text;
}

// RFC 4231, test cases 1 and 2.
TEST(Auth, ComputesHmacSha256) {
  const std::vector<std::byte> key(20, std::byte{0x0b});
  EXPECT_EQ(hexadecimal(hmac_sha256(key, {as_byte_span("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(
      hexadecimal(hmac_sha256(as_byte_span("Jefe"), {as_byte_span("what do ya want "), as_byte_span("for nothing?")})),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Auth, RefusesToWorkWithoutAKey) { EXPECT_THROW(hmac_sha256({}, {as_byte_span("text")}), Error); }

TEST(Auth, ComparesAllBytes) {
  const Mac mac = hmac_sha256(as_byte_span("key"), {});
  EXPECT_TRUE(equal_in_constant_time(mac, mac));
  for (std::size_t i = 0; i < mac.size(); ++i) {
    Mac other = mac;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(equal_in_constant_time(mac, other)) << i;
  }
}

TEST(Auth, NoncesDiffer) {
  Nonce a{};
  Nonce b{};
  fill_random(a);
  fill_random(b);
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace atl::transport
