// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "atoll/plan/layers/costs.h"

namespace atl::plan {

/// The ranges of an interleaved pipeline: chunks() for each device, where range c lies on device c mod p of p. Of
/// `pipeline`, which has one range for each device, the devices, their order, their micro-batches in flight and whether
/// they recompute are kept; the items are divided anew. `seconds` is of these ranges, where each boundary that is
/// crossed counts. None where there are fewer items than ranges, where a tie forbids the cuts, or where no division
/// was found that fits the memories.
///
/// Steps: (1) the division whose longest range is shortest, by a dynamic programme over (range, end); (2) an item moves
/// from one range to another, those between shifting by one, while this makes devices fit or the step shorter. The
/// second is a heuristic with a budget: what it finds is good, and not proved to be the best. O(ranges * items^2) for
/// the first, at most 2^22 ranges looked at for the second.
std::optional<LayerPipeline> chunked(const LayerCosts& costs, const LayerPipeline& pipeline);

}  // namespace atl::plan
