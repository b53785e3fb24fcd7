// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "atoll/plan/layers/costs.h"

namespace atl::plan {

/// Returns the ranges of an interleaved pipeline: chunks() for each device, where range c is on device c mod p of p. Of
/// `pipeline`, which has one range for each device, the devices, their order, their micro-batches in flight and whether
/// they recompute are kept; the items are divided again. `seconds` is that of these ranges, where every boundary that
/// is crossed counts. None if there are fewer items than ranges, if a tie forbids the cuts, or if no division was found
/// that fits the memories.
///
/// Steps: (1) the division whose longest range is shortest, by a dynamic program over (range, end); (2) an item moves
/// from one range to another, shifting those between by one, while this makes devices fit or the step shorter. The
/// second step is a heuristic with a budget: its result is good, but not proved to be the best. O(ranges * items^2) for
/// the first, at most 2^22 ranges evaluated for the second.
std::optional<LayerPipeline> chunked(const LayerCosts& costs, const LayerPipeline& pipeline);

}  // namespace atl::plan
