// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/plan/batches/batches.h"

namespace atl::plan {

/// Returns the seconds of communication that a step of these ranks, in ascending order, does not hide.
using Communication = std::function<double(std::span<const std::size_t> ranks)>;

/// The cost of averaging the gradients. Inside an island of m ranks, 2 (m - 1) / m of the gradient's bytes pass at the
/// island's rate, on all islands at once; between k islands, 2 (k - 1) / k of them at the bridge's rate, plus twice its
/// latency. The share `overlap` of both is hidden by the backward pass.
struct Network {
  double gradient_bytes = 0;
  std::vector<int> islands;                     ///< per rank, numbered from 0
  std::vector<double> inside_bytes_per_second;  ///< per island
  double bridge_bytes_per_second = 0;
  double bridge_latency = 0;  ///< seconds
  double overlap = 0;         ///< from 0 to 1
};

/// Throws Error(kInvalidArgument) for rates that are not above 0 and for islands without a rate.
Communication communication_of(Network network, std::size_t ranks);
/// Maps sets of ranks to seconds; a set that the table lacks is not considered.
Communication communication_of(std::map<std::vector<std::size_t>, double> table);

/// Advice on which ranks should take part.
struct Membership {
  std::vector<std::size_t> best;               ///< the ranks with the shortest step; of equal steps, fewer ranks
  double best_step = 0;                        ///< its seconds: the optimum of its batches and its communication
  std::optional<double> all_step;              ///< with all ranks; none if the batch does not fit
  std::vector<std::optional<double>> without;  ///< with all ranks but this; none if the batch does not fit
  bool exact = false;                          ///< every set was evaluated, or all that were given
  std::vector<std::string> advice;             ///< the same in words

  std::string to_json() const;
};

/// Evaluates `sets`, each of ascending ranks. Without them, evaluates every set of up to 12 ranks; of more ranks, the
/// fastest one, two, three, ... and all but one. Throws Error(kInvalidArgument) if the batch fits no set.
Membership membership(std::span<const Rank> ranks, std::int64_t batch, const Communication& communication,
                      std::vector<std::vector<std::size_t>> sets = {});

/// Reads an object with "ranks" and "batch" and either "network", with the names of Network as keys, or "table", a list
/// of {"ranks": [...], "seconds": ...} of the sets to evaluate. Without either, communication takes no time.
Membership membership_from_json(const std::string& text);

}  // namespace atl::plan
