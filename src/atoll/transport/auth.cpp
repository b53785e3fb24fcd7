// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <vector>

#include "atoll/core/error.h"

namespace atl::transport {
namespace {

void require_sha256(bool done) {
  if (!done) throw Error(ErrorKind::kUnavailable, "this machine's OpenSSL cannot compute SHA-256");
}

}  // namespace

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

void Sha256::Free::operator()(evp_md_ctx_st* context) const noexcept { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require_sha256(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::add(std::span<const std::byte> bytes) {
  require_sha256(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::array<std::byte, 32> Sha256::finish() {
  std::array<std::byte, 32> digest{};
  require_sha256(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

}  // namespace atl::transport
