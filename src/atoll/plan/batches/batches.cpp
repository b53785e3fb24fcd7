// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

using Batches = std::vector<std::int64_t>;

Split split_of(std::span<const Rank> ranks, Batches batches) {
  const double seconds = step_seconds(ranks, batches);
  return {std::move(batches), seconds};
}

// Returns the largest batch of each rank within `limit`, which must be met by each rank's least.
Batches within(std::span<const Rank> ranks, const std::vector<Bounds>& bounds, double limit) {
  Batches result;
  result.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t most = ranks[i].cost.most_within(limit, bounds[i].most);
    result.push_back(std::max(bounds[i].least, most / bounds[i].quantum * bounds[i].quantum));
  }
  return result;
}

// Assigns `left` samples, one quantum at a time.
void give_one_by_one(std::span<const Rank> ranks, const std::vector<Bounds>& bounds, Batches& batches,
                     std::int64_t left) {
  using Entry = std::tuple<double, std::int64_t, std::size_t>;  // time with one more, batch, rank
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto offer = [&](std::size_t rank) {
    const std::int64_t next = batches[rank] + bounds[rank].quantum;
    if (next <= bounds[rank].most) queue.emplace(ranks[rank].cost.seconds(next), next, rank);
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) offer(rank);
  for (; left > 0; left -= bounds.front().quantum) {
    const auto [seconds, next, rank] = queue.top();
    queue.pop();
    batches[rank] = next;
    offer(rank);
  }
}

// Assigns `left` samples of equal cost, up to `tops`: to the emptiest rank, then to the lowest.
void give_level(const Batches& tops, std::int64_t quantum, Batches& batches, std::int64_t left) {
  const auto given = [&](std::int64_t level) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < tops.size(); ++i) sum += std::clamp(level, batches[i], tops[i]) - batches[i];
    return sum;
  };
  const std::int64_t quanta = last_that<std::int64_t>(
      0, std::ranges::max(tops) / quantum, [&](std::int64_t level) { return given(level * quantum) <= left; });
  const std::int64_t level = quanta * quantum;
  left -= given(level);
  for (std::size_t i = 0; i < tops.size(); ++i) batches[i] = std::clamp(level, batches[i], tops[i]);
  for (std::size_t i = 0; i < tops.size() && left > 0; ++i) {
    if (batches[i] != level || batches[i] >= tops[i]) continue;
    batches[i] += quantum;
    left -= quantum;
  }
}

// Bisects over the floating-point numbers themselves, so that it ends with two neighbours.
double between(double low, double high) {
  const auto low_bits = std::bit_cast<std::uint64_t>(low);
  return std::bit_cast<double>(low_bits + (std::bit_cast<std::uint64_t>(high) - low_bits) / 2);
}

Batches of_each(const std::vector<Bounds>& bounds, std::int64_t Bounds::*limit) {
  Batches batches;
  for (const Bounds& bound : bounds) batches.push_back(bound.*limit);
  return batches;
}

ReachableSums sums_within(const std::vector<Bounds>& bounds, const Batches& tops, std::int64_t batch) {
  std::vector<Bounds> narrowed = bounds;
  for (std::size_t i = 0; i < bounds.size(); ++i) narrowed[i].most = tops[i];
  return {std::move(narrowed), batch};
}

Split split_unequal_quanta(std::span<const Rank> ranks, const std::vector<Bounds>& bounds, std::int64_t batch) {
  const auto fits = [&](double limit) {
    const Batches tops = within(ranks, bounds, limit);
    return total_of(tops) >= batch && sums_within(bounds, tops, batch).reaches(batch);
  };
  double high = step_seconds(ranks, of_each(bounds, &Bounds::least));
  if (!fits(high)) {
    double low = high;
    high = step_seconds(ranks, of_each(bounds, &Bounds::most));
    for (double middle = between(low, high); middle != low; middle = between(low, high)) {
      (fits(middle) ? high : low) = middle;
    }
  }
  const Batches tops = within(ranks, bounds, high);
  const std::vector<double> shares(tops.begin(), tops.end());
  return split_of(ranks, sums_within(bounds, tops, batch).pick(shares));
}

}  // namespace

std::vector<std::string> names_of(std::span<const Rank> ranks) {
  std::vector<std::string> names;
  for (const Rank& rank : ranks) names.push_back(rank.name);
  return names;
}

std::vector<Bounds> bounds_of(std::span<const Rank> ranks) {
  std::vector<Bounds> bounds;
  for (const Rank& rank : ranks) bounds.push_back(rank.bounds);
  return bounds;
}

double step_seconds(std::span<const Rank> ranks, std::span<const std::int64_t> batches) {
  double longest = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) longest = std::max(longest, ranks[i].cost.seconds(batches[i]));
  return longest;
}

// Giving one sample at a time first assigns the batches that fit within `low`; so that rule also assigns the samples
// that are left, either one by one, or, if low and high are neighbours, to a level: each of them takes exactly `high`.
Split threshold(std::span<const Rank> ranks, std::int64_t batch) {
  const std::vector<Bounds> bounds = settled(bounds_of(ranks), batch, names_of(ranks));
  if (!same_quantum(bounds)) return split_unequal_quanta(ranks, bounds, batch);
  const std::int64_t quantum = bounds.front().quantum;
  const std::int64_t few = quantum * static_cast<std::int64_t>(ranks.size());
  const Batches least = of_each(bounds, &Bounds::least);
  double low = step_seconds(ranks, least);
  double high = step_seconds(ranks, of_each(bounds, &Bounds::most));
  Batches batches = within(ranks, bounds, low);
  if (total_of(batches) >= batch) {  // even the smallest batches take this long, so samples one by one fill up below
    high = std::exchange(low, 0);
    batches = least;
  }
  for (double middle = between(low, high); batch - total_of(batches) > few && middle != low;
       middle = between(low, high)) {
    Batches tried = within(ranks, bounds, middle);
    if (total_of(tried) >= batch) {
      high = middle;
    } else {
      low = middle;
      batches = std::move(tried);
    }
  }
  const std::int64_t left = batch - total_of(batches);
  if (left <= few) {
    give_one_by_one(ranks, bounds, batches, left);
  } else {
    give_level(within(ranks, bounds, high), quantum, batches, left);
  }
  return split_of(ranks, std::move(batches));
}

}  // namespace atl::plan
