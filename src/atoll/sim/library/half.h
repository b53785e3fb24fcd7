// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace atl::sim {

// The two 16-bit floating-point types, to and from float32; rounding is to nearest, ties to even, and NaN stays NaN.

struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (wide & 0x7FFFFFFFU) > 0x7F800000U;
    bits = static_cast<std::uint16_t>(is_nan ? (wide >> 16) | 0x40U : (wide + 0x7FFFU + ((wide >> 16) & 1U)) >> 16);
  }
  explicit operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

struct Float16 {
  std::uint16_t bits;

  Float16() = default;
  explicit Float16(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (wide >> 16) & 0x8000U;
    const std::uint32_t magnitude = wide & 0x7FFFFFFFU;
    std::uint32_t narrow = 0;
    if (magnitude > 0x7F800000U) {
      narrow = 0x7E00U;
    } else if (magnitude >= 0x477FF000U) {  // rounds to 65536 or more
      narrow = 0x7C00U;
    } else if (magnitude >= 0x38800000U) {
      narrow = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    } else {  // below 2^-14: adding 0.5 leaves the value in units of 2^-24, rounded, in the low bits
      narrow = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    }
    bits = static_cast<std::uint16_t>(sign | narrow);
  }
  explicit operator float() const noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = bits & 0x7FFFU;
    if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));
    if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
    const float small = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(small));
  }
};

}  // namespace atl::sim
