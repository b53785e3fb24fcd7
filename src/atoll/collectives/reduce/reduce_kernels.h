// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "atoll/collectives/reduce/reduce.h"
#include "atoll/collectives/types.h"

/// Kernels that reduce.cpp and blocks.cpp take from the source of each instruction set (reduce_plain.cpp,
/// reduce_avx2.cpp, reduce_avx512.cpp).
namespace atl::collectives::detail {

/// The scalar operands of a fold, in each form that a kernel may want.
struct Parameters {
  double factor = 1.0;               ///< kPremulSum on floating-point types
  std::uint64_t integer_factor = 1;  ///< kPremulSum on integers, modulo 2^64
  std::int64_t divisor = 1;          ///< kAvg, at least 2
};

/// Folds `bytes` bytes of each of the `source_count` >= 1 sources into `destination`.
using Kernel = void (*)(const std::byte* const* sources, std::size_t source_count, std::byte* destination,
                        std::size_t bytes, const Parameters& parameters);

/// Functions on whole blocks (blocks.h): `elements` is a multiple of 32, and `codes` and `scales` are the two parts of
/// the packed bytes.
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

struct Kernels {
  Kernel folds[kDataTypeCount][kReduceOpCount] = {};  ///< nullptr where is_supported() is false
  BlockKernels blocks;
};
const Kernels& plain_kernels() noexcept;
const Kernels& avx2_kernels() noexcept;    ///< x86-64 only
const Kernels& avx512_kernels() noexcept;  ///< x86-64 only

/// Returns those of `simd`, which this machine must have.
const Kernels& kernels_of(Simd simd) noexcept;

/// Returns the best instruction set of this machine that a kernel exists for.
Simd machine_simd() noexcept;

/// Returns the instruction set that ATOLL_SIMD=`requested` (nullptr or empty: unset) selects on a machine with
/// `machine`; nullopt if the name is invalid.
std::optional<Simd> choose_simd(const char* requested, Simd machine) noexcept;

}  // namespace atl::collectives::detail
