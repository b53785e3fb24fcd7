// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace atl::plan {

/// FNV-1a of 64 bits: tells unequal values apart, and protects against nothing. The same on every platform.
std::uint64_t hash_of(std::string_view text) noexcept;
/// Of the values as little-endian 64-bit integers.
std::uint64_t hash_of(std::span<const std::int64_t> values) noexcept;

}  // namespace atl::plan
