// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/batches/batches.h"

namespace atl::plan {

/// Which of the two rules that BalanceNet's paper gives: equation 5 with pairwise latencies, each relative to the
/// largest of its own rank, or Algorithm 1 with one latency per rank, relative to the largest of all. For equal ranks
/// the first asks for twice as much as the second.
enum class BalanceNetRule { kEquation5, kAlgorithm1 };

/// What BalanceNet computes for one rank.
struct BalanceNetRank {
  double key = 0;                 ///< K: share of all operations per second
  double memory = 0;              ///< MW: 1 - share of all memory in use
  std::vector<double> latencies;  ///< NL: to each rank, or one
  std::vector<double> network;    ///< NCW: 1 - latency / largest latency, for each of them
  double query = 0;               ///< (K + MW + sum of NCW) / 3, the share of the baseline batch that is asked for
  std::int64_t literal = 1;       ///< max(floor(query * batch), 1)
};

struct BalanceNet {
  std::vector<BalanceNetRank> ranks;
  std::vector<std::string> notes;  ///< what stood in for metrics that nobody stated
};

/// Metrics that no rank states are replaced: operations by samples per second at batch / ranks, memory in use and
/// latencies by equal ones. The paper divides by zero where memory in use or latencies are all zero; here nobody's
/// share of no memory is 1 / ranks, and no latency weighs 1, as the nearest one does. Throws Error(kInvalidArgument)
/// where only some ranks state a metric.
BalanceNet balancenet(std::span<const Rank> ranks, std::int64_t batch, BalanceNetRule rule);

}  // namespace atl::plan
