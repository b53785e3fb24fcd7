// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/apportion.h"
#include "atoll/plan/cost.h"

namespace atl::plan {

/// Power that a device draws while it computes and while it waits.
struct Power {
  double busy_watts = 0;
  double idle_watts = 0;
};

/// Metrics that BalanceNet measures on a rank.
struct Metrics {
  std::optional<double> ops;          ///< operations per second
  std::optional<double> memory_used;  ///< bytes
  std::optional<double> latency;      ///< seconds, one value per rank (Algorithm 1)
  std::vector<double> latencies;      ///< seconds to each rank (equation 5); empty when unknown
};

/// One rank as the planner sees it.
struct Rank {
  std::string name;
  Cost cost;
  Bounds bounds;
  std::optional<Power> power;
  Metrics metrics;
};

/// Samples per rank, and the duration of the step: the longest time of all ranks.
struct Split {
  std::vector<std::int64_t> batches;
  double seconds = 0;
};

/// Returns the batches of sum `batch` within the ranks' bounds whose longest time is smallest, exactly. Of equally long
/// times the one that leaves a rank with fewer samples goes first, then the lowest rank: the result is that of giving
/// one sample at a time to the rank that finishes it first, so every rank of a job computes the same. It bisects the
/// time until each rank's largest batch within it is known up to one sample: O(ranks * log(batch)) inversions of a
/// cost. With unequal quanta it tests sums for reachability instead (ReachableSums has the limit), and ties go to
/// batches near the ranks' capacities. Throws Error(kInvalidArgument) if no batches fit.
Split threshold(std::span<const Rank> ranks, std::int64_t batch);

/// Returns the longest seconds(batches[i]) of all ranks.
double step_seconds(std::span<const Rank> ranks, std::span<const std::int64_t> batches);

struct EnergySplit {
  std::vector<std::int64_t> batches;
  bool exact = false;
};

/// Returns the joules of one step: each rank draws its busy watts while it computes and its idle watts for the rest.
double step_joules(std::span<const Rank> ranks, std::span<const std::int64_t> batches);

/// Returns the batches of sum `batch` with the least step_joules among those whose step takes at most `limit` seconds;
/// there must be at least one. Exact, by one dynamic program for each possible step length that may win, if these take
/// fewer than 2^29 additions (batch times choices of all ranks each). Above that, with equal quanta, a few lengths are
/// tried and each sample goes where the lower convex hull of the energy rises least, which is not exact; with unequal
/// quanta the split is that of threshold(). Throws Error(kInvalidArgument) for ranks without watts, or with more idle
/// than busy watts.
EnergySplit least_energy(std::span<const Rank> ranks, std::int64_t batch, double limit);

std::vector<std::string> names_of(std::span<const Rank> ranks);
std::vector<Bounds> bounds_of(std::span<const Rank> ranks);

}  // namespace atl::plan
