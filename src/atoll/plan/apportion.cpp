// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

void check_weights(std::span<const double> weights, std::size_t ranks, std::span<const std::string> names) {
  if (weights.size() != ranks) {
    refuse(std::to_string(ranks) + " ranks have " + counted(static_cast<std::int64_t>(weights.size()), "weight") +
           ": give one for each");
  }
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require_amount("the weight of " + rank_name(i, names), weights[i]);
    sum += weights[i];
  }
  if (!(sum > 0)) refuse("all weights are 0: give at least one above 0");
  require_amount("the sum of the weights", sum);
}

// Computes shares in proportion to the weights, clamped to the bounds, of sum `total`. In each round the ranks that are
// outside their bounds on the side with the larger excess are fixed there, and the others share again: at most one
// round per rank.
std::vector<double> clamped_shares(std::span<const double> weights, std::int64_t total,
                                   std::span<const Bounds> bounds) {
  std::vector<double> shares(weights.size(), 0);
  std::vector<bool> held(weights.size(), false);
  for (std::size_t round = 0; round <= weights.size(); ++round) {
    auto left = static_cast<double>(total);
    double weight = 0;
    double free = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (held[i]) {
        left -= shares[i];
      } else {
        weight += weights[i];
        free += 1;
      }
    }
    double surplus = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (held[i]) continue;
      shares[i] = weight > 0 ? left * (weights[i] / weight) : left / free;
      surplus +=
          std::clamp(shares[i], static_cast<double>(bounds[i].least), static_cast<double>(bounds[i].most)) - shares[i];
    }
    bool moved = false;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (held[i]) continue;
      const auto least = static_cast<double>(bounds[i].least);
      const auto most = static_cast<double>(bounds[i].most);
      const bool low = shares[i] < least && surplus >= 0;
      const bool high = shares[i] > most && surplus <= 0;
      if (!low && !high) continue;
      shares[i] = low ? least : most;
      held[i] = true;
      moved = true;
    }
    if (!moved) break;
  }
  return shares;
}

}  // namespace

std::vector<std::int64_t> apportion(std::span<const double> weights, std::int64_t total, std::span<const Bounds> bounds,
                                    std::span<const std::string> names) {
  check_weights(weights, bounds.size(), names);
  const std::vector<Bounds> limits = settled(bounds, total, names);
  const std::vector<double> shares = clamped_shares(weights, total, limits);
  if (!same_quantum(limits)) return ReachableSums(limits, total).pick(shares);

  const std::int64_t quantum = limits.front().quantum;
  std::vector<std::int64_t> batches(shares.size());
  std::vector<double> lost(shares.size());
  std::int64_t left = total;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double units = shares[i] / static_cast<double>(quantum);
    // A share that is whole except for rounding counts as that number.
    const double whole = std::floor(units + 1e-9);
    batches[i] = std::clamp(static_cast<std::int64_t>(whole) * quantum, limits[i].least, limits[i].most);
    lost[i] = std::max(0.0, units - whole);
    left -= batches[i];
  }
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  while (left != 0) {
    const std::int64_t before = left;
    for (const std::size_t rank : order) {
      if (left > 0 && batches[rank] + quantum <= limits[rank].most) {
        batches[rank] += quantum;
        left -= quantum;
      } else if (left < 0 && batches[rank] - quantum >= limits[rank].least) {
        batches[rank] -= quantum;
        left += quantum;
      }
    }
    if (left == before)
      throw Error(ErrorKind::kInternal,
                  "an apportionment left " + std::to_string(left) + " samples over: please report it");
  }
  return batches;
}

}  // namespace atl::plan
