// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atoll/plan/bounds.h"

namespace atl::plan {

/// Whole batches of sum `total` in proportion to `weights`, by the largest remainder (Hamilton): each rank gets its
/// share rounded down to a quantum, and what is left goes to those that lost most, of equal losses to the lowest rank.
/// Where a bound binds, the rank gets the bound and the others share what is left. Where ranks of weight 0 must take
/// samples because the others are full, they share them equally. With unequal quanta the sum is exact and each batch is
/// near its share (ReachableSums). `names` may be empty. Throws Error(kInvalidArgument) for negative, infinite or only
/// zero weights, and where no batches fit.
std::vector<std::int64_t> apportion(std::span<const double> weights, std::int64_t total, std::span<const Bounds> bounds,
                                    std::span<const std::string> names = {});

}  // namespace atl::plan
