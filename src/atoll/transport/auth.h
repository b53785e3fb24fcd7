// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>

struct evp_md_ctx_st;

namespace atl::transport {

using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;

/// Fills `out` from the system's cryptographic generator. Throws Error(kUnavailable) when there is no entropy.
void fill_random(std::span<std::byte> out);

/// Computes the HMAC-SHA256 of the concatenated `parts`. `key` must not be empty.
Mac hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

/// Compares in a time that does not depend on the content.
bool equal_in_constant_time(const Mac& a, const Mac& b) noexcept;

/// Computes SHA-256 (FIPS 180-4) incrementally. Throws Error(kUnavailable) when this machine's OpenSSL lacks it.
class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  /// Returns the digest of everything that was added; add() must not be called afterwards.
  std::array<std::byte, 32> finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace atl::transport
