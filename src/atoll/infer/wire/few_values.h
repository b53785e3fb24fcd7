// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// kBits. A byte with the number of distinct elements, 1 to 16; these elements; then for each element its place among
// them, in 0, 1, 2 or 4 bits, the first one in the lowest bits of the first byte, and zeros up to a whole byte.
namespace atl::infer::wire {

/// Packs elements of 1, 2, 4 or 8 bytes; none if there are more than 16 distinct ones, detected at the 17th. Elements
/// are compared by their bits. `bytes` must not be empty. Cost: a vectorised comparison per element and distinct
/// element.
std::optional<std::vector<std::byte>> pack_few_values(std::size_t element_bytes, std::span<const std::byte> bytes);

/// Unpacks into `out`, which must not be empty. Throws Error(kProtocol) for anything that pack_few_values cannot have
/// made.
void unpack_few_values(std::size_t element_bytes, std::span<const std::byte> packed, std::span<std::byte> out);

/// The maximum packed size of `elements` elements.
std::size_t most_few_values_bytes(std::size_t element_bytes, std::size_t elements) noexcept;

}  // namespace atl::infer::wire
