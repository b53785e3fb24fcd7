// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace atl {

/// A half-open range of a tensor along one dimension.
struct Region {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const noexcept { return std::max<std::int64_t>(0, end - begin); }
  bool is_empty() const noexcept { return end <= begin; }
  bool holds(Region other) const noexcept { return other.is_empty() || (begin <= other.begin && other.end <= end); }
  bool operator==(const Region&) const = default;
};

/// Returns the smallest region that holds both; an empty one adds nothing.
inline Region hull(Region a, Region b) noexcept {
  if (a.is_empty()) return b;
  if (b.is_empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

inline Region intersection(Region a, Region b) noexcept {
  const Region both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.is_empty() ? Region{} : both;
}

}  // namespace atl
