// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/collectives/types.h"

namespace atl::collectives {

/// One fold of arrays of equal length, element by element, from the first source to the last:
///   result[i] = finish( ((s0[i] op s1[i]) op s2[i]) ... )
/// float16, bfloat16 and fp8 are folded in float32 and rounded once, to nearest even, when stored (float8_e4m3fn, which
/// has no infinity, saturates at 448 as in PyTorch). Other types are folded in their own type: integers wrap around;
/// bool SUM and MAX are OR, PRODUCT and MIN are AND, as in PyTorch, and any nonzero byte is true. MIN and MAX keep the
/// first of equal values, so also of zeros of either sign, and propagate NaN. A NaN result is the positive quiet NaN
/// without payload; a single source with nothing to multiply or divide is copied unchanged. The result depends only on
/// the values and their order: not on the instruction set, alignment, length, position, or the calling thread's
/// floating-point mode.
struct Fold {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  /// PREMUL_SUM: every source is multiplied by `factor` first (in float32 for the narrow types; integers need a whole
  /// factor). Set for raw contributions only.
  bool premultiply = false;
  double factor = 1.0;
  /// AVG: the folded value is divided by this, not negative (integers truncate towards zero); 0 or 1: no division. Set
  /// at the owner only.
  std::int64_t divisor = 0;
};

/// Folds `count` elements of each of `sources` (at least one) into `destination`, which may be one of the sources (same
/// address) but must not overlap them otherwise. No alignment is required. Thread-safe, allocates nothing. Throws
/// Error(kInvalidArgument) if is_supported() is false, there is no source, or `factor` or `divisor` does not fit.
void fold(const Fold& how, std::span<const std::byte* const> sources, std::byte* destination, std::size_t count);

/// Instruction sets that a kernel exists for. fold() takes the best one that this machine has;
/// ATOLL_SIMD=plain|avx2|avx512 lowers it.
enum class Simd : std::uint8_t { kPlain, kAvx2, kAvx512 };
Simd best_simd() noexcept;
const char* to_string(Simd simd) noexcept;

/// fold() with a given instruction set, for tests and benchmarks. Throws Error(kUnavailable) if the machine lacks it.
void fold_with(Simd simd, const Fold& how, std::span<const std::byte* const> sources, std::byte* destination,
               std::size_t count);

/// The first element that is not finite.
struct NotFinite {
  std::uint64_t index = 0;  ///< of the element; a complex element counts as one
  bool is_nan = false;      ///< else an infinity
};

/// Returns the first non-finite element of `data`, reading at about memory bandwidth; nothing for types without such
/// values.
std::optional<NotFinite> find_not_finite(DataType dtype, std::span<const std::byte> data) noexcept;

}  // namespace atl::collectives
