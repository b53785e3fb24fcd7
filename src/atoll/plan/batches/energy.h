// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "atoll/plan/batches/batches.h"

namespace atl::plan {

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

}  // namespace atl::plan
