// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <vector>

#include "atoll/core/error.h"

namespace atl::transport {

void fill_random(std::span<std::byte> out) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) != 1) {
    throw Error(ErrorKind::kUnavailable, "the system's random generator failed");
  }
}

Mac hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts) {
  if (key.empty()) throw Error(ErrorKind::kInternal, "a message cannot be authenticated without a key");
  std::vector<std::byte> message;
  for (const auto part : parts) message.insert(message.end(), part.begin(), part.end());
  Mac mac;
  unsigned int length = 0;
  const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &length);
  if (done == nullptr || length != mac.size()) throw Error(ErrorKind::kInternal, "OpenSSL cannot compute HMAC-SHA256");
  return mac;
}

bool equal_in_constant_time(const Mac& a, const Mac& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace atl::transport
