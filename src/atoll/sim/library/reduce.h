// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "atoll/sim/library/call.h"

namespace atl::sim {

/// Returns whether `op` is defined for `dtype`: bool has no average, and kBytes has no reduction.
bool can_reduce(ReduceOp op, DataType dtype) noexcept;

/// Folds `count` elements of every source, in their order, into `output`, which may be one of the sources. 16-bit types
/// are added in float32 and rounded once; an average is divided once, by the number of sources, integers towards zero.
/// Minimum and maximum keep NaN. Requires can_reduce() and a source.
void reduce(ReduceOp op, DataType dtype, std::span<const std::byte* const> sources, std::byte* output,
            std::size_t count) noexcept;

}  // namespace atl::sim
