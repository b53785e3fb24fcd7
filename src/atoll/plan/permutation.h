// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::plan {

/// Returns 0 ... size - 1 in random order (Fisher-Yates). The order depends on the arguments alone, on every platform
/// and in every version, so ranks need not exchange it. Throws Error(kInvalidArgument) for a negative size or epoch.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

/// Draws `count` indices of `weights` with replacement, with probabilities proportional to the weights. They must be
/// finite, at least 0, and not all 0.
std::vector<std::int64_t> draw(std::span<const double> weights, std::int64_t count, std::uint64_t seed,
                               std::int64_t epoch);

}  // namespace atl::plan
