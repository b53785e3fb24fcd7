// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/permutation.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

// The positions to swap are drawn some way ahead and prefetched in the meantime: a large permutation does not fit in
// any cache.
template <typename Index>
void shuffle(std::span<Index> values, Random& random) {
  std::array<std::size_t, 64> places;
  for (std::size_t end = values.size(); end > 1;) {
    const std::size_t count = std::min(places.size(), end - 1);
    for (std::size_t i = 0; i < count; ++i) {
      places[i] = random.below(end - i);
      __builtin_prefetch(&values[places[i]], 1);
    }
    for (std::size_t i = 0; i < count; ++i) std::swap(values[--end], values[places[i]]);
  }
}

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  if (size < 0) refuse("a permutation of " + std::to_string(size) + " values: give at least 0");
  Random random(seed, epoch, Purpose::kPermutation);
  if (size > INT32_MAX) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(size));
    std::iota(values.begin(), values.end(), std::int64_t{0});
    shuffle(std::span(values), random);
    return values;
  }
  std::vector<std::int32_t> small(static_cast<std::size_t>(size));
  std::iota(small.begin(), small.end(), 0);
  shuffle(std::span(small), random);
  return {small.begin(), small.end()};
}

std::vector<std::int64_t> draw(std::span<const double> weights, std::int64_t count, std::uint64_t seed,
                               std::int64_t epoch) {
  if (count < 0) refuse("a draw of " + std::to_string(count) + " values: give at least 0");
  std::vector<double> sums;
  sums.reserve(weights.size());
  double sum = 0;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require_amount("weight " + std::to_string(i), weights[i]);
    if (weights[i] > 0) last = static_cast<std::int64_t>(i);
    sums.push_back(sum += weights[i]);
  }
  if (last < 0) refuse("all weights are 0: give at least one above 0");
  require_amount("the sum of the weights", sum);
  Random random(seed, epoch, Purpose::kDraw);
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(count));
  for (std::int64_t& index : drawn) {
    // The first sum above the point; rounding may put the point on the last one.
    const auto found = std::upper_bound(sums.begin(), sums.end(), random.unit() * sum);
    index = std::min(last, static_cast<std::int64_t>(found - sums.begin()));
  }
  return drawn;
}

}  // namespace atl::plan
