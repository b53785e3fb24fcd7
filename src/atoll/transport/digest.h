// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace atl::transport {

/// SHA-256 (FIPS 180-4) of bytes that come one after the other. Error(kUnavailable) where this machine's OpenSSL has none.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  /// Of all that was added; nothing can be added after it.
  std::array<std::byte, 32> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::transport
