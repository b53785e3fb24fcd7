// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/digest.h"

#include <openssl/evp.h>

#include "atoll/core/error.h"

namespace atl::transport {
namespace {

void require(bool done) {
  if (!done) throw Error(ErrorKind::kUnavailable, "this machine's OpenSSL cannot compute SHA-256");
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  require(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::array<std::byte, 32> Sha256::finish() {
  std::array<std::byte, 32> digest{};
  require(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

}  // namespace atl::transport
