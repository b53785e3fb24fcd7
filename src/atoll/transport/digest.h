// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace atl::transport {

/// Computes SHA-256 (FIPS 180-4) incrementally. Throws Error(kUnavailable) when this machine's OpenSSL lacks it.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  /// Returns the digest of everything that was added; add() must not be called afterwards.
  std::array<std::byte, 32> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::transport
