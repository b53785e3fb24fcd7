// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Kernels that blocks.cpp takes from the source of each instruction set (blocks_plain.cpp, blocks_avx2.cpp,
/// blocks_avx512.cpp).
namespace atl::collectives {

/// Functions on whole blocks: `elements` is a multiple of 32, and `codes` and `scales` are the two parts of the packed
/// bytes.
struct BlockKernels {
  /// `loss` may be nullptr, or `values`.
  using Pack = void (*)(const float* values, std::size_t elements, std::byte* codes, std::byte* scales, float* loss);
  using Unpack = void (*)(const std::byte* codes, const std::byte* scales, std::size_t elements, float* values);
  using Widen = void (*)(const std::byte* from, std::size_t count, float* to);
  using Narrow = void (*)(const float* from, std::size_t count, std::byte* to);

  Pack pack[3] = {};  ///< by BlockFormat
  Unpack unpack[3] = {};
  Unpack add[3] = {};
  Widen widen[4] = {};  ///< by DataType: float64, float32, float16, bfloat16
  Narrow narrow[4] = {};
};

namespace detail {

const BlockKernels& plain_block_kernels() noexcept;
const BlockKernels& avx2_block_kernels() noexcept;    ///< x86-64 only
const BlockKernels& avx512_block_kernels() noexcept;  ///< x86-64 only

}  // namespace detail
}  // namespace atl::collectives
