// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/random.h"

#include <algorithm>
#include <numeric>
#include <string>

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

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

Random::Random(std::uint64_t seed, std::int64_t epoch, Purpose purpose)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {
  if (epoch < 0 || epoch >> 56 != 0) refuse("the epoch is " + std::to_string(epoch) + ": give one from 0 to 2^56 - 1");
  counter_ = {0, 0, static_cast<std::uint32_t>(epoch),
              static_cast<std::uint32_t>(epoch >> 32) | static_cast<std::uint32_t>(purpose) << 24};
}

void Random::refill() noexcept {
  block_ = philox(counter_, key_);
  if (++counter_[0] == 0) ++counter_[1];
  used_ = 0;
}

std::uint64_t Random::below_long(std::uint64_t bound) {
  const auto drawn = [&] { return static_cast<unsigned __int128>(next_long()) * bound; };
  unsigned __int128 product = drawn();
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = (0U - bound) % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = drawn();
  }
  return static_cast<std::uint64_t>(product >> 64);
}

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
