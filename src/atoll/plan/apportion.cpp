// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::int64_t kMaxSums = std::int64_t{1} << 22;

std::int64_t common_divisor(std::span<const Bounds> bounds) {
  std::int64_t divisor = 0;
  for (const Bounds& bound : bounds) divisor = std::gcd(divisor, bound.quantum);
  return divisor;
}

Bounds settled_rank(const Bounds& bound, const std::string& name) {
  if (bound.quantum < 1) refuse(name + " has the quantum " + std::to_string(bound.quantum) + ": give at least 1");
  if (bound.least < 0) refuse(name + " has the least batch " + std::to_string(bound.least) + ": give at least 0");
  if (bound.least > bound.most) {
    refuse(name + " takes at least " + std::to_string(bound.least) + " and at most " + std::to_string(bound.most) +
           " samples: lower the former or raise the latter");
  }
  const std::int64_t most = std::min(bound.most, kUnbounded);
  Bounds result{std::min(bound.least, kUnbounded), most / bound.quantum * bound.quantum, bound.quantum};
  result.least = (result.least + bound.quantum - 1) / bound.quantum * bound.quantum;
  if (result.least > result.most) {
    refuse(name + " takes " + std::to_string(bound.least) + " to " + std::to_string(bound.most) +
           " samples, but no multiple of its quantum " + std::to_string(bound.quantum) + " is in that range");
  }
  return result;
}

[[noreturn]] void refuse_total(std::int64_t total, const std::string& reason, std::int64_t below, std::int64_t above) {
  std::string advice;
  if (below > 0) advice = std::to_string(below);
  if (above > 0) advice += (advice.empty() ? "" : " or ") + std::to_string(above);
  refuse("a global batch of " + std::to_string(total) + " " + reason +
         (advice.empty() ? ": change the quanta" : ": " + advice + " would work"));
}

void check_same_quantum(std::int64_t total, std::int64_t quantum, std::int64_t least, std::int64_t most) {
  if (total % quantum == 0) return;
  const std::int64_t below = total / quantum * quantum;
  refuse_total(total, "is not a multiple of the quantum " + std::to_string(quantum) + " of all ranks",
               below >= least ? below : 0, below + quantum <= most ? below + quantum : 0);
}

void check_reachable(std::int64_t total, const std::vector<Bounds>& bounds) {
  const std::int64_t farthest = std::ranges::max(bounds, {}, &Bounds::quantum).quantum;
  const ReachableSums sums(bounds, total + farthest);
  if (sums.reaches(total)) return;
  std::int64_t below = total;
  while (below > 0 && !sums.reaches(below)) --below;
  std::int64_t above = total;
  while (above <= total + farthest && !sums.reaches(above)) ++above;
  refuse_total(total, "cannot be made of batches that are multiples of their ranks' quanta", below,
               above <= total + farthest ? above : 0);
}

void check_weights(std::span<const double> weights, std::size_t ranks, std::span<const std::string> names) {
  if (weights.size() != ranks) {
    refuse(std::to_string(ranks) + " ranks have " + counted(weights.size(), "weight") + ": give one for each");
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
  for (bool has_moved = true; std::exchange(has_moved, false);) {
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
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (held[i]) continue;
      const auto least = static_cast<double>(bounds[i].least);
      const auto most = static_cast<double>(bounds[i].most);
      const bool low = shares[i] < least && surplus >= 0;
      const bool high = shares[i] > most && surplus <= 0;
      if (!low && !high) continue;
      shares[i] = low ? least : most;
      held[i] = has_moved = true;
    }
  }
  return shares;
}

}  // namespace

std::string rank_name(std::size_t rank, std::span<const std::string> names) {
  std::string text = "rank " + std::to_string(rank);
  if (rank < names.size() && !names[rank].empty()) text += " (" + names[rank] + ")";
  return text;
}

bool same_quantum(std::span<const Bounds> bounds) {
  return std::ranges::all_of(bounds, [&](const Bounds& bound) { return bound.quantum == bounds.front().quantum; });
}

std::vector<Bounds> settled(std::span<const Bounds> bounds, std::int64_t total, std::span<const std::string> names) {
  if (bounds.empty()) refuse("a plan has no ranks: give at least one");
  if (total < 1 || total > kUnbounded) {
    refuse("the global batch is " + std::to_string(total) + ": give 1 to 2^40 samples");
  }
  std::vector<Bounds> result;
  std::int64_t least = 0;
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < bounds.size(); ++rank) {
    result.push_back(settled_rank(bounds[rank], rank_name(rank, names)));
    least = std::min(least + result.back().least, 2 * kUnbounded);
    most = std::min(most + result.back().most, 2 * kUnbounded);
  }
  if (least > total) {
    refuse("all ranks take at least " + counted(least, "sample") + " together, but the global batch is " +
           std::to_string(total) + ": raise the global batch, or let ranks stay empty (least = 0)");
  }
  if (most < total) {
    refuse("the caps of all ranks hold " + counted(most, "sample") + ", but the global batch is " +
           std::to_string(total) + ": raise a cap, lower the global batch, or accumulate gradients");
  }
  if (same_quantum(result)) {
    check_same_quantum(total, result.front().quantum, least, most);
  } else {
    check_reachable(total, result);
  }
  for (Bounds& bound : result) bound.most = std::min(bound.most, total / bound.quantum * bound.quantum);
  return result;
}

ReachableSums::ReachableSums(std::vector<Bounds> bounds, std::int64_t total)
    : bounds_(std::move(bounds)), total_(total), unit_(common_divisor(bounds_)) {
  const std::int64_t units = total_ / unit_ + 1;
  if (units > kMaxSums / static_cast<std::int64_t>(bounds_.size())) {
    refuse(
        "with unequal quanta, ranks times global batch divided by the quanta's greatest common divisor must stay "
        "below 2^22, but this is " +
        std::to_string(bounds_.size()) + " times " + std::to_string(units) + ": give all ranks the same quantum");
  }
  sums_.emplace_back(static_cast<std::size_t>(units), false);
  sums_.back()[0] = true;
  std::vector<std::int64_t> latest(static_cast<std::size_t>(units));
  for (const Bounds& bound : bounds_) {
    const std::vector<bool>& before = sums_.back();
    std::vector<bool> after(before.size(), false);
    const std::int64_t step = bound.quantum / unit_;
    const std::int64_t least = bound.least / unit_;
    const std::int64_t most = bound.most / unit_;
    // latest[s] is the largest sum of the earlier ranks from which this rank can reach s with at least its least.
    for (std::int64_t sum = 0; sum < units; ++sum) {
      const std::int64_t from = sum - least;
      const auto place = static_cast<std::size_t>(sum);
      latest[place] = sum >= step ? latest[place - static_cast<std::size_t>(step)] : -1;
      if (from >= 0 && before[static_cast<std::size_t>(from)]) latest[place] = from;
      after[place] = latest[place] >= 0 && latest[place] >= sum - most;
    }
    sums_.push_back(std::move(after));
  }
}

bool ReachableSums::reaches_before(std::size_t rank, std::int64_t sum) const {
  return sum >= 0 && sum % unit_ == 0 && sum / unit_ < static_cast<std::int64_t>(sums_[rank].size()) &&
         sums_[rank][static_cast<std::size_t>(sum / unit_)];
}

bool ReachableSums::reaches(std::int64_t sum) const { return reaches_before(bounds_.size(), sum); }

std::vector<std::int64_t> ReachableSums::pick(std::span<const double> shares) const {
  std::vector<std::int64_t> batches(bounds_.size(), 0);
  double weight = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::int64_t left = total_;
  for (std::size_t rank = bounds_.size(); rank-- > 0;) {
    const Bounds& bound = bounds_[rank];
    const double wanted = weight > 0 ? static_cast<double>(left) * shares[rank] / weight : 0;
    double nearest = HUGE_VAL;
    for (std::int64_t batch = bound.least; batch <= std::min(bound.most, left); batch += bound.quantum) {
      const double distance = std::abs(static_cast<double>(batch) - wanted);
      if (distance >= nearest || !reaches_before(rank, left - batch)) continue;
      nearest = distance;
      batches[rank] = batch;
    }
    left -= batches[rank];
    weight -= shares[rank];
  }
  return batches;
}

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
    if (left == before) throw Error(ErrorKind::kInternal, "an apportionment left samples over: please report it");
  }
  return batches;
}

}  // namespace atl::plan
