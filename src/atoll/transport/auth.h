// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace atl::transport {

using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;

/// Fills `out` from the system's cryptographic generator. Throws Error(kUnavailable) when there is no entropy.
void fill_random(std::span<std::byte> out);

/// Computes the HMAC-SHA256 of the concatenated `parts`. `key` must not be empty.
Mac hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

/// Compares in a time that does not depend on the content.
bool equal_in_constant_time(const Mac& a, const Mac& b) noexcept;

}  // namespace atl::transport
