// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/cost.h"

namespace atl::plan {

/// The batches that a rank may take: 0 if `least` is 0, otherwise multiples of `quantum` from `least` to `most`.
struct Bounds {
  std::int64_t least = 1;
  std::int64_t most = kUnbounded;
  std::int64_t quantum = 1;
};

/// Returns `bounds` with least and most moved inwards to multiples of the quantum, and no most above `total`. Throws
/// Error(kInvalidArgument), which suggests what to change, if no batches within them add up to `total`. `names` may be
/// empty.
std::vector<Bounds> settled(std::span<const Bounds> bounds, std::int64_t total, std::span<const std::string> names);

bool same_quantum(std::span<const Bounds> bounds);

/// Names the rank in messages: "rank 2 (slow)".
std::string rank_name(std::size_t rank, std::span<const std::string> names);

/// The totals that one batch per rank can add up to, within settled bounds of any quanta. Time and memory grow with
/// ranks times total divided by the greatest common divisor of the quanta; Error(kInvalidArgument) above 2^22.
class ReachableSums {
 public:
  ReachableSums(std::vector<Bounds> bounds, std::int64_t total);

  bool reaches(std::int64_t sum) const;
  /// Returns batches of sum `total`, which must be reachable, near `shares`: from the last rank to the first, each
  /// takes the batch nearest to its part of the samples that are left.
  std::vector<std::int64_t> pick(std::span<const double> shares) const;

 private:
  bool reaches_before(std::size_t rank, std::int64_t sum) const;

  std::vector<Bounds> bounds_;
  std::int64_t total_;
  std::int64_t unit_;
  std::vector<std::vector<bool>> sums_;  // [i][s]: whether the first i ranks can take s units
};

/// Divides `total` samples into whole batches in proportion to `weights`, by the largest remainder (Hamilton): each
/// rank gets its share rounded down to a quantum, and the samples that are left go to the ranks that lost most by
/// rounding, the lowest rank first where losses are equal. A rank whose bound binds gets the bound, and the others
/// share the rest. Ranks of weight 0 that must take samples because the others are full share them equally. With
/// unequal quanta the sum is exact and each batch is near its share (ReachableSums). `names` may be empty. Throws
/// Error(kInvalidArgument) if a weight is negative or infinite, if all are 0, or if no batches fit.
std::vector<std::int64_t> apportion(std::span<const double> weights, std::int64_t total, std::span<const Bounds> bounds,
                                    std::span<const std::string> names = {});

}  // namespace atl::plan
