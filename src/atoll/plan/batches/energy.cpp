// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Batches = std::vector<std::int64_t>;
constexpr double kMaxWork = 1 << 29;
constexpr int kTriedLengths = 16;
constexpr int kRounds = 3;

struct Problem {
  std::span<const Rank> ranks;
  std::vector<Bounds> bounds;
  std::int64_t batch = 0;
  double idle_watts = 0;  // of all ranks

  // Joules that `count` samples on `rank` add to those of idle ranks.
  double joules(std::size_t rank, std::int64_t count) const {
    const Power& power = *ranks[rank].power;
    return (power.busy_watts - power.idle_watts) * ranks[rank].cost.seconds(count);
  }
  // Joules per sample from `low` to `high` samples.
  double slope(std::size_t rank, std::int64_t low, std::int64_t high) const {
    return (joules(rank, high) - joules(rank, low)) / static_cast<double>(high - low);
  }
  std::int64_t most(std::size_t rank, double length) const {
    const std::int64_t quantum = bounds[rank].quantum;
    return ranks[rank].cost.most_within(length, bounds[rank].most) / quantum * quantum;
  }
};

Problem problem_of(std::span<const Rank> ranks, std::int64_t batch) {
  const std::vector<std::string> names = names_of(ranks);
  Problem problem{ranks, settled(bounds_of(ranks), batch, names), batch, 0};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string name = rank_name(i, names);
    if (!ranks[i].power) refuse("the policy energy needs busy_watts and idle_watts of " + name);
    require_amount("busy_watts of " + name, ranks[i].power->busy_watts);
    require_amount("idle_watts of " + name, ranks[i].power->idle_watts);
    if (ranks[i].power->busy_watts < ranks[i].power->idle_watts) {
      refuse(name + " draws less when busy (" + number(ranks[i].power->busy_watts) + " W) than when idle (" +
             number(ranks[i].power->idle_watts) + " W)");
    }
    problem.idle_watts += ranks[i].power->idle_watts;
  }
  return problem;
}

// Returns every length in [shortest, limit] that a step can have.
std::vector<double> lengths_of(const Problem& problem, double shortest, double limit) {
  std::vector<double> lengths;
  for (std::size_t i = 0; i < problem.ranks.size(); ++i) {
    const Bounds& bound = problem.bounds[i];
    for (std::int64_t count = problem.most(i, limit); count >= bound.least; count -= bound.quantum) {
      const double seconds = problem.ranks[i].cost.seconds(count);
      if (seconds < shortest) break;
      lengths.push_back(seconds);
    }
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  if (problem.idle_watts == 0) lengths = {lengths.back()};  // a shorter step saves nothing
  return lengths;
}

// Runs a min-plus dynamic program over the ranks: the least joules of each sum within `length`. Returns the least for
// the batch; with `chosen` also the batches.
double least_within(const Problem& problem, std::int64_t unit, double length, Batches* chosen) {
  const std::size_t size = static_cast<std::size_t>(problem.batch / unit) + 1;
  std::vector<double> before(size, HUGE_VAL);
  before[0] = 0;
  std::vector<std::vector<std::int64_t>> choices;
  for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
    std::vector<double> after(size, HUGE_VAL);
    std::vector<std::int64_t> choice(size, 0);
    const std::int64_t most = problem.most(rank, length);
    for (std::int64_t count = problem.bounds[rank].least; count <= most; count += problem.bounds[rank].quantum) {
      const double joules = problem.joules(rank, count);
      const auto shift = static_cast<std::size_t>(count / unit);
      for (std::size_t sum = shift; sum < size; ++sum) {
        const double candidate = before[sum - shift] + joules;
        if (candidate >= after[sum]) continue;
        after[sum] = candidate;
        choice[sum] = count;
      }
    }
    before = std::move(after);
    if (chosen != nullptr) choices.push_back(std::move(choice));
  }
  if (chosen != nullptr) {
    chosen->assign(problem.ranks.size(), 0);
    std::size_t left = size - 1;
    for (std::size_t rank = problem.ranks.size(); rank-- > 0;) {
      (*chosen)[rank] = choices[rank][left];
      left -= static_cast<std::size_t>((*chosen)[rank] / unit);
    }
  }
  return before[size - 1];
}

// The longest step allowed has the least joules above idle. A shorter one only saves idle energy, so the search from
// the shortest upwards ends when even that least cannot win. Returns none if it would need more than `most` programs.
std::optional<Batches> exact_batches(const Problem& problem, std::int64_t unit, const std::vector<double>& lengths,
                                     double most) {
  const double floor = least_within(problem, unit, lengths.back(), nullptr);
  double best = HUGE_VAL;
  double best_length = lengths.back();
  for (const double length : lengths) {
    if (floor + length * problem.idle_watts >= best) break;
    if (--most < 1) return std::nullopt;
    const double joules = least_within(problem, unit, length, nullptr) + length * problem.idle_watts;
    if (joules >= best) continue;
    best = joules;
    best_length = length;
  }
  Batches batches;
  least_within(problem, unit, best_length, &batches);
  return batches;
}

// Returns the corners of the lower convex hull of a rank's joules, from its least to its most within `length`.
Batches hull_of(const Problem& problem, std::size_t rank, double length) {
  Batches corners;
  const std::int64_t most = problem.most(rank, length);
  for (std::int64_t count = problem.bounds[rank].least; count <= most; count += problem.bounds[rank].quantum) {
    while (corners.size() > 1 && problem.slope(rank, corners.back(), count) <=
                                     problem.slope(rank, corners[corners.size() - 2], corners.back())) {
      corners.pop_back();
    }
    corners.push_back(count);
  }
  return corners;
}

Batches marginal_batches(const Problem& problem, double length) {
  using Entry = std::tuple<double, std::size_t, std::size_t>;  // joules per sample, rank, corner
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<Batches> hulls;
  Batches batches;
  const auto offer = [&](std::size_t rank, std::size_t corner) {
    if (corner >= hulls[rank].size()) return;
    queue.emplace(problem.slope(rank, hulls[rank][corner - 1], hulls[rank][corner]), rank, corner);
  };
  std::int64_t left = problem.batch;
  for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
    hulls.push_back(hull_of(problem, rank, length));
    batches.push_back(problem.bounds[rank].least);
    left -= batches.back();
    offer(rank, 1);
  }
  while (left > 0 && !queue.empty()) {
    const auto [slope, rank, corner] = queue.top();
    queue.pop();
    const std::int64_t taken = std::min(left, hulls[rank][corner] - batches[rank]);
    batches[rank] += taken;
    left -= taken;
    offer(rank, corner + 1);
  }
  return batches;
}

// Tries lengths from the shortest to the limit, then refines twice between the neighbours of the best.
Batches approximate_batches(const Problem& problem, const Split& shortest, double limit) {
  Batches best = shortest.batches;
  if (!same_quantum(problem.bounds)) return best;
  double least = step_joules(problem.ranks, best);
  double low = shortest.seconds;
  double high = limit;
  double best_length = low;
  for (int round = 0; round < kRounds; ++round) {
    const double width = (high - low) / kTriedLengths;
    for (int i = 0; i <= kTriedLengths; ++i) {
      const double length = i == kTriedLengths ? high : low + width * i;
      Batches batches = marginal_batches(problem, length);
      const double joules = step_joules(problem.ranks, batches);
      if (joules > least) continue;
      least = joules;
      best = std::move(batches);
      best_length = length;
    }
    low = std::max(low, best_length - width);
    high = std::min(high, best_length + width);
  }
  return best;
}

}  // namespace

double step_joules(std::span<const Rank> ranks, std::span<const std::int64_t> batches) {
  const double step = step_seconds(ranks, batches);
  double joules = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const double busy = ranks[i].cost.seconds(batches[i]);
    joules += ranks[i].power->busy_watts * busy + ranks[i].power->idle_watts * (step - busy);
  }
  return joules;
}

EnergySplit least_energy(std::span<const Rank> ranks, std::int64_t batch, double limit) {
  const Problem problem = problem_of(ranks, batch);
  const Split shortest = threshold(ranks, batch);
  std::int64_t unit = problem.bounds.front().quantum;
  std::int64_t choices = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Bounds& bound = problem.bounds[i];
    unit = std::gcd(unit, bound.quantum);
    choices += (problem.most(i, limit) - bound.least) / bound.quantum + 1;
  }
  const std::int64_t sums = batch / unit + 1;
  const double most = kMaxWork / static_cast<double>(choices) / static_cast<double>(sums);
  if (most >= 2) {
    auto batches = exact_batches(problem, unit, lengths_of(problem, shortest.seconds, limit), most);
    if (batches) return {std::move(*batches), true};
  }
  return {approximate_batches(problem, shortest, limit), false};
}

}  // namespace atl::plan
