// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

namespace atl::plan {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Converts a non-negative int to an index.
inline std::size_t as_index(int index) noexcept { return static_cast<std::size_t>(index); }

inline std::int64_t total_of(std::span<const std::int64_t> counts) noexcept {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Returns the last of [low, high] for which `holds` is true, as it must be for `low` and all between. O(log).
template <class Number, class Holds>
Number last_that(Number low, Number high, const Holds& holds) {
  while (low < high) {
    const Number middle = low + (high - low + 1) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace atl::plan
