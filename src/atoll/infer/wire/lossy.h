// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atoll/infer/graph.h"

// kHalf: the elements as float16. kInt8: a float32 step for each channel, then for each element its number of steps as
// a signed byte. Both little-endian, for float32 and float64 only.
namespace atl::infer::wire {

/// The nearest float16, ties to even; larger finite values become +-65504; NaN stays NaN.
std::uint16_t half_of(float value) noexcept;
std::uint16_t half_of(double value) noexcept;
/// Exact.
float float_of_half(std::uint16_t half) noexcept;

/// None for other dtypes.
std::optional<std::vector<std::byte>> pack_half(Dtype dtype, std::span<const std::byte> bytes);
/// Throws Error(kProtocol) for other dtypes and a size that does not fit.
void unpack_half(Dtype dtype, std::span<const std::byte> packed, std::span<std::byte> out);

/// None for other dtypes, NaN, infinities, and channels whose step would not be a normal float32.
std::optional<std::vector<std::byte>> pack_int8(const Tensor& type, std::span<const std::byte> bytes);
/// Throws Error(kProtocol) for anything that pack_int8 cannot have made.
void unpack_int8(const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out);

}  // namespace atl::infer::wire
