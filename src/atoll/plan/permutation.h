// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::plan {

/// 0 ... size - 1 in random order (Fisher-Yates): a function of its arguments alone, on every platform and in every
/// version, so that ranks need not exchange it. Throws Error(kInvalidArgument) for a negative size or epoch.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

/// `count` indices of `weights`, drawn with replacement with probabilities proportional to the weights. They must be
/// finite, at least 0, and not all 0.
std::vector<std::int64_t> draw(std::span<const double> weights, std::int64_t count, std::uint64_t seed,
                               std::int64_t epoch);

}  // namespace atl::plan
