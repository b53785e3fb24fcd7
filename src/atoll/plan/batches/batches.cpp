// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

using Batches = std::vector<std::int64_t>;

std::vector<Bounds> settled_bounds(std::span<const Rank> ranks, std::int64_t batch) {
  return settled(bounds_of(ranks), batch, names_of(ranks));
}

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
  std::int64_t low = 0;
  std::int64_t high = *std::max_element(tops.begin(), tops.end()) / quantum;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (given(middle * quantum) <= left) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  left -= given(low * quantum);
  for (std::size_t i = 0; i < tops.size(); ++i) batches[i] = std::clamp(low * quantum, batches[i], tops[i]);
  for (std::size_t i = 0; i < tops.size() && left > 0; ++i) {
    if (batches[i] != low * quantum || batches[i] >= tops[i]) continue;
    batches[i] += quantum;
    left -= quantum;
  }
}

// Bisects over the floating-point numbers themselves, so that it ends with two neighbours.
double between(double low, double high) {
  const auto low_bits = std::bit_cast<std::uint64_t>(low);
  return std::bit_cast<double>(low_bits + (std::bit_cast<std::uint64_t>(high) - low_bits) / 2);
}

double longest_least(std::span<const Rank> ranks, const std::vector<Bounds>& bounds) {
  double longest = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    longest = std::max(longest, ranks[i].cost.seconds(bounds[i].least));
  }
  return longest;
}

double longest_most(std::span<const Rank> ranks, const std::vector<Bounds>& bounds) {
  double longest = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) longest = std::max(longest, ranks[i].cost.seconds(bounds[i].most));
  return longest;
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
  double high = longest_least(ranks, bounds);
  if (!fits(high)) {
    double low = high;
    high = longest_most(ranks, bounds);
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

Split greedy(std::span<const Rank> ranks, std::int64_t batch) {
  const std::vector<Bounds> bounds = settled_bounds(ranks, batch);
  if (!same_quantum(bounds)) return split_unequal_quanta(ranks, bounds, batch);
  Batches batches;
  for (const Bounds& bound : bounds) batches.push_back(bound.least);
  give_one_by_one(ranks, bounds, batches, batch - total_of(batches));
  return split_of(ranks, std::move(batches));
}

// The greedy rule first assigns the batches that fit within `low`; so it also assigns the samples that are left, either
// one by one, or, if low and high are neighbours, to a level: each of them takes exactly `high`.
Split threshold(std::span<const Rank> ranks, std::int64_t batch) {
  const std::vector<Bounds> bounds = settled_bounds(ranks, batch);
  if (!same_quantum(bounds)) return split_unequal_quanta(ranks, bounds, batch);
  const std::int64_t quantum = bounds.front().quantum;
  const std::int64_t few = quantum * static_cast<std::int64_t>(ranks.size());
  double low = longest_least(ranks, bounds);
  double high = longest_most(ranks, bounds);
  Batches least;
  for (const Bounds& bound : bounds) least.push_back(bound.least);
  Batches batches = within(ranks, bounds, low);
  if (total_of(batches) >= batch) {  // even the smallest batches take this long, so the greedy rule fills up below
    const double level = low;
    low = 0;
    high = level;
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
