// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/hash.h"

namespace atl::plan {
namespace {

constexpr std::uint64_t kOffset = 0xcbf29ce484222325U;
constexpr std::uint64_t kPrime = 0x100000001b3U;

}  // namespace

std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = kOffset;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  return hash;
}

std::uint64_t hash_of(std::span<const std::int64_t> values) noexcept {
  std::uint64_t hash = kOffset;
  for (const std::int64_t value : values) {
    auto bits = static_cast<std::uint64_t>(value);
    for (int byte = 0; byte < 8; ++byte, bits >>= 8) hash = (hash ^ (bits & 0xff)) * kPrime;
  }
  return hash;
}

}  // namespace atl::plan
