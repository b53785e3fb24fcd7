// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace atl::collectives {

/// XXH3-64 of bytes that come one after the other, and never 0, which stands for "none".
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void begin() noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  std::uint64_t value() const noexcept;

 private:
  void* state_;
};

/// The same of one piece.
std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept;

}  // namespace atl::collectives
