// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atoll/plan/bounds.h"

namespace atl::plan {

/// Divides `total` samples into whole batches in proportion to `weights`, by the largest remainder (Hamilton): each
/// rank gets its share rounded down to a quantum, and the samples that are left go to the ranks that lost most by
/// rounding, the lowest rank first where losses are equal. A rank whose bound binds gets the bound, and the others
/// share the rest. Ranks of weight 0 that must take samples because the others are full share them equally. With
/// unequal quanta the sum is exact and each batch is near its share (ReachableSums). `names` may be empty. Throws
/// Error(kInvalidArgument) if a weight is negative or infinite, if all are 0, or if no batches fit.
std::vector<std::int64_t> apportion(std::span<const double> weights, std::int64_t total, std::span<const Bounds> bounds,
                                    std::span<const std::string> names = {});

}  // namespace atl::plan
