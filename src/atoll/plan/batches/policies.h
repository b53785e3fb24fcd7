// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/plan/batches/batches.h"

namespace atl::plan {

/// Input of a policy. Fields that the policy does not use are ignored.
struct Request {
  std::vector<Rank> ranks;
  std::int64_t batch = 0;           ///< the global batch, in samples
  std::string policy = "minmax";    ///< one of policies()
  std::string form = "normalised";  ///< of the balancenet policies: "normalised" or "literal"
  std::uint64_t seed = 0;           ///< random
  std::int64_t epoch = 0;           ///< random
  std::vector<double> shares;       ///< fixed: one per rank, of any sum
  std::int64_t probe = 0;           ///< kaitian policies: batch at which the scores are measured; 0: batch / ranks
  int rounds = 8;                   ///< kaitian-iterative
  double slowdown = 0.1;            ///< energy: by which share a step may exceed the optimum

  /// Reads an object with these names as keys; docs/plan-batches.md describes those of a rank. Throws
  /// Error(kInvalidArgument) that names the rank and the key.
  static Request from_json(const std::string& text);
};

/// A division of the global batch, with its predicted times.
struct BatchPlan {
  std::string policy;
  std::string form;  ///< empty if the policy has only one form
  std::vector<std::string> names;
  std::vector<std::int64_t> batches;
  std::int64_t total = 0;       ///< sum of the batches; differs from the request's batch in literal forms only
  std::vector<double> seconds;  ///< per rank
  double step = 0;              ///< the longest of them
  std::vector<double> idle;     ///< per rank: the share of the step in which it waits
  double mean_idle = 0;
  double bound = 0;                         ///< the shortest step that any division of the request's batch has
  double distance = 1;                      ///< step / bound; if the totals differ, per sample (then it may be below 1)
  std::optional<double> joules_per_sample;  ///< if all ranks state their watts
  bool exact = false;                       ///< no division is better by the policy's objective
  std::vector<std::string> notes;

  /// Returns 16 hexadecimal digits, equal for equal policies and batches.
  std::string id() const;
  std::string to_json() const;
};

/// equal               the same for each rank
/// random              by random weights of the request's seed and epoch
/// fixed               in proportion to the request's shares
/// kaitian             in proportion to the ranks' speeds at the probe batch
/// kaitian-iterative   the same rule repeated at the resulting batches; the best of all rounds
/// balancenet-eq5      by compute, memory and pairwise latencies, equation 5 of BalanceNet
/// balancenet-alg1     by compute, memory and one latency per rank, Algorithm 1 of BalanceNet
/// energy              the least joules per sample among steps at most `slowdown` longer than the optimum
/// minmax              the shortest step
std::span<const std::string_view> policies() noexcept;

/// Divides request.batch by request.policy within the ranks' bounds; literal forms ignore the bounds and note it.
/// Throws Error(kInvalidArgument) if no division fits, or if the policy is unknown or lacks an input. Pure: equal
/// requests give equal plans.
BatchPlan plan_batches(const Request& request);

/// Predicts the times of `batches` and compares them with the optimum for request.batch.
BatchPlan evaluate(const Request& request, std::vector<std::int64_t> batches);

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

/// All policies on the same costs, side by side.
struct Explanation {
  std::vector<std::string> names;
  std::vector<BatchPlan> plans;                               ///< in the order of policies(), one for each form
  std::vector<std::pair<std::string, std::string>> left_out;  ///< policies that cannot run, and why
  std::vector<BalanceNetRank> equation5;                      ///< BalanceNet's Key, Query and Value, rank by rank
  std::vector<BalanceNetRank> algorithm1;

  std::string to_json() const;
};

/// Plans request.batch by each policy; request.policy and request.form are ignored. Throws Error(kInvalidArgument) if
/// no division fits at all.
Explanation explain(const Request& request);

}  // namespace atl::plan
