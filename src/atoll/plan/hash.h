// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace atl::plan {

/// 64-bit FNV-1a, the same on every platform. It tells unequal values apart; it is not a cryptographic hash.
constexpr std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  return hash;
}

/// Hashes the values as little-endian 64-bit integers, as which every supported machine holds them.
inline std::uint64_t hash_of(std::span<const std::int64_t> values) noexcept {
  return hash_of(std::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
}

}  // namespace atl::plan
