// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/policies.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Values = std::vector<double>;

// Returns one value per rank, or none if no rank states one.
std::optional<Values> stated(std::span<const Rank> ranks, const std::string& metric,
                             std::optional<double> Metrics::*value) {
  const std::vector<std::string> names = names_of(ranks);
  Values values;
  std::optional<std::size_t> absent;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (const std::optional<double>& given = ranks[i].metrics.*value) {
      require_amount("the " + metric + " of " + rank_name(i, names), *given);
      values.push_back(*given);
    } else {
      absent = i;
    }
  }
  if (values.empty()) return std::nullopt;
  if (absent) refuse(rank_name(*absent, names) + " states no " + metric + ", but another rank does: state all or none");
  return values;
}

Values shares_of(const Values& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  Values shares;
  for (const double value : values) shares.push_back(sum > 0 ? value / sum : 1 / static_cast<double>(values.size()));
  return shares;
}

Values speeds(std::span<const Rank> ranks, std::int64_t batch) {
  const std::int64_t probe = std::max<std::int64_t>(1, batch / static_cast<std::int64_t>(ranks.size()));
  Values result;
  for (const Rank& rank : ranks) {
    const double seconds = rank.cost.compute_seconds(probe);
    result.push_back(seconds > 0 ? static_cast<double>(probe) / seconds : 0);
  }
  return result;
}

Values network_weights(const Values& latencies, double largest) {
  Values weights;
  for (const double latency : latencies) weights.push_back(largest > 0 ? 1 - latency / largest : 1);
  return weights;
}

void pairwise_latencies(std::span<const Rank> ranks, BalanceNet& result) {
  const bool any = std::ranges::any_of(ranks, [](const Rank& rank) { return !rank.metrics.latencies.empty(); });
  if (!any) result.notes.emplace_back("no rank states latencies: equal values are used instead");
  const std::vector<std::string> names = names_of(ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Values latencies = ranks[i].metrics.latencies;
    if (!any) {
      latencies.assign(ranks.size(), 1);
      latencies[i] = 0;
    }
    if (latencies.size() != ranks.size()) {
      refuse(rank_name(i, names) + " states " + std::to_string(latencies.size()) +
             " latencies: give one to each of the " + counted(ranks.size(), "rank"));
    }
    for (const double latency : latencies) require_amount("a latency of " + rank_name(i, names), latency);
    result.ranks[i].network = network_weights(latencies, *std::max_element(latencies.begin(), latencies.end()));
    result.ranks[i].latencies = std::move(latencies);
  }
}

void single_latencies(std::span<const Rank> ranks, BalanceNet& result) {
  auto latencies = stated(ranks, "latency", &Metrics::latency);
  if (!latencies) {
    result.notes.emplace_back("no rank states a latency: equal values are used instead");
    latencies = Values(ranks.size(), 1);
  }
  const double largest = *std::max_element(latencies->begin(), latencies->end());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    result.ranks[i].latencies = {(*latencies)[i]};
    result.ranks[i].network = network_weights(result.ranks[i].latencies, largest);
  }
}

}  // namespace

BalanceNet balancenet(std::span<const Rank> ranks, std::int64_t batch, BalanceNetRule rule) {
  if (ranks.empty()) refuse("a plan has no ranks: give at least one");
  BalanceNet result;
  result.ranks.resize(ranks.size());
  auto ops = stated(ranks, "ops", &Metrics::ops);
  if (!ops) {
    result.notes.emplace_back("no rank states operations per second: samples per second are used instead");
    ops = speeds(ranks, batch);
  }
  auto memory = stated(ranks, "memory_used", &Metrics::memory_used);
  if (!memory) {
    result.notes.emplace_back("no rank states its memory in use: equal values are used instead");
    memory = Values(ranks.size(), 1);
  }
  const Values keys = shares_of(*ops);
  const Values used = shares_of(*memory);
  rule == BalanceNetRule::kEquation5 ? pairwise_latencies(ranks, result) : single_latencies(ranks, result);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    BalanceNetRank& rank = result.ranks[i];
    rank.key = keys[i];
    rank.memory = 1 - used[i];
    const double network = std::accumulate(rank.network.begin(), rank.network.end(), 0.0);
    rank.query = (rank.key + rank.memory + network) / 3;
    // A share that is whole except for rounding counts as that number.
    const double samples = std::floor(rank.query * static_cast<double>(batch) + 1e-9);
    rank.literal = std::max<std::int64_t>(1, static_cast<std::int64_t>(samples));
  }
  return result;
}

}  // namespace atl::plan
