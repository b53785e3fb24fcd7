// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace atl::plan {

/// 64-bit FNV-1a, the same on every platform. It tells unequal values apart; it is not a cryptographic hash.
std::uint64_t hash_of(std::string_view text) noexcept;
/// Hashes the values as little-endian 64-bit integers.
std::uint64_t hash_of(std::span<const std::int64_t> values) noexcept;

}  // namespace atl::plan
