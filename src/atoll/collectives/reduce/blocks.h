// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/collectives/types.h"

// Floating-point numbers in about a quarter of float32's bytes: blocks of 32 elements share one scale, a power of two,
// and each element is one byte. These are the formats MXINT8, MXFP8 E4M3 and MXFP8 E5M2 of the OCP Microscaling Formats
// (MX) Specification 1.0 (Open Compute Project, 2023); for how well they train, see Rouhani et al., "Microscaling Data
// Formats for Deep Learning" (2023). int8 elements are whole numbers here, so their scale is 1/64 of the
// specification's. As the scale is a power of two, every step but the rounding of elements is exact, so that any device
// gets the same bits.
//
// The scale is the smallest power of two for which no element of the block exceeds the format's largest one (the
// specification leaves the choice open), so nothing saturates. With it, q of a finite x is the nearest, ties to even:
//
//   int8   |x - q| <= scale / 2                        scale < 2/127 of the block's largest magnitude, or 2^-125
//   e4m3   |x - q| <= max(|x| / 16, scale / 1024)      scale < 2/448 of it, or 2^-116
//   e5m2   |x - q| <= max(|x| / 8, scale / 131072)     scale < 2/57344 of it, or 2^-109
//
// With the smallest scales no unpacked value is subnormal in float32, and subnormal values become zero, because some
// devices do not support them. A block that contains a NaN or an infinity is unpacked as NaN throughout. Packing
// unpacked values again changes nothing.
namespace atl::collectives {

enum class BlockFormat : std::uint8_t { kInt8, kFloat8E4M3, kFloat8E5M2 };
inline constexpr int kBlockFormatCount = 3;
const char* to_string(BlockFormat format) noexcept;  ///< "int8"

inline constexpr std::size_t kBlockElements = 32;

/// Returns the packed size of `count` elements: a byte for each, then a byte of scale for each block, of which the last
/// may have fewer elements.
constexpr std::size_t packed_bytes(std::size_t count) noexcept {
  return count + (count + kBlockElements - 1) / kBlockElements;
}

/// Returns whether values of `dtype` can be packed: float64, float32, float16, bfloat16. float64 is rounded to float32
/// first; values beyond float32's range count as infinite.
bool can_pack(DataType dtype) noexcept;

/// Packs `count` values into packed_bytes(count) bytes. As for all functions here: no alignment is required, memory
/// must not overlap, thread-safe, allocates nothing; the bits are the same on every instruction set and in every
/// floating-point mode of the calling thread. Throws Error(kInvalidArgument) if can_pack() is false, and
/// Error(kUnavailable) if the machine lacks `simd`, which is for tests.
void pack_blocks(BlockFormat format, DataType dtype, const std::byte* values, std::size_t count, std::byte* packed,
                 Simd simd = best_simd());

/// Packs float32 values and leaves in `values` what was lost: value == unpacked + loss exactly, in blocks that are
/// finite; zero in others.
void pack_blocks_keeping_loss(BlockFormat format, float* values, std::size_t count, std::byte* packed,
                              Simd simd = best_simd());

/// Unpacks `count` values of `dtype`: exactly the packed ones, except that float16 gets the nearest ones if they were
/// packed from another dtype. Finite values stay finite: they are limited to the dtype's largest. Any bytes may be
/// unpacked: codes and scales that pack_blocks never makes become NaN, and a scale of 0 is zero. Errors as for
/// pack_blocks.
void unpack_blocks(BlockFormat format, DataType dtype, const std::byte* packed, std::size_t count, std::byte* values,
                   Simd simd = best_simd());

/// Adds the unpacked values to `sums`.
void add_blocks(BlockFormat format, const std::byte* packed, std::size_t count, float* sums, Simd simd = best_simd());

}  // namespace atl::collectives
