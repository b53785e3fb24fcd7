// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/batches/batches.h"

namespace atl::plan {

/// The two rules of BalanceNet's paper: equation 5 with pairwise latencies, each relative to the largest of its own
/// rank, and Algorithm 1 with one latency per rank, relative to the largest of all. For equal ranks the first requests
/// twice as much as the second.
enum class BalanceNetRule { kEquation5, kAlgorithm1 };

/// What BalanceNet computes for one rank.
struct BalanceNetRank {
  double key = 0;                 ///< K: share of all operations per second
  double memory = 0;              ///< MW: 1 - share of all memory in use
  std::vector<double> latencies;  ///< NL: to each rank, or one
  std::vector<double> network;    ///< NCW: 1 - latency / largest latency, for each of them
  double query = 0;               ///< (K + MW + sum of NCW) / 3, the requested share of the baseline batch
  std::int64_t literal = 1;       ///< max(floor(query * batch), 1)
};

struct BalanceNet {
  std::vector<BalanceNetRank> ranks;
  std::vector<std::string> notes;  ///< what replaced metrics that no rank states
};

/// Applies the rule to each rank. Metrics that no rank states are replaced: operations by samples per second at batch /
/// ranks, memory in use and latencies by equal values. The paper divides by zero if all memory in use or all latencies
/// are zero; here each rank's share of memory is then 1 / ranks, and a latency of zero weighs 1, as the nearest one
/// does. Throws Error(kInvalidArgument) if only some ranks state a metric.
BalanceNet balancenet(std::span<const Rank> ranks, std::int64_t batch, BalanceNetRule rule);

}  // namespace atl::plan
