// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace atl::collectives {

/// Computes the XXH3-64 of consecutive pieces of data. The result is never 0, which stands for "none".
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

/// Returns the checksum of a single piece.
std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept;

}  // namespace atl::collectives
