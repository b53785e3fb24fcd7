// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/reductions.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan::simulated {
namespace {

// Each of `ranks` sends `bytes` to the next one, in this number of rounds. Returns the latency of all rounds.
double add_ring(const std::vector<int>& ranks, double bytes, double rounds, Links& links, Phase& phase) {
  double latency = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Path& path = links.path(ranks[i], ranks[(i + 1) % ranks.size()], true);
    if (path.legs.empty()) continue;
    phase.flows.push_back({&path.legs.front(), bytes});
    latency = std::max(latency, path.legs.front().latency);
  }
  return rounds * latency;
}

std::vector<std::vector<int>> by_island(const std::vector<int>& ranks, const Plan& plan) {
  std::map<std::string, std::size_t> places;
  std::vector<std::vector<int>> islands;
  for (const int rank : ranks) {
    const auto [place, is_new] = places.try_emplace(plan.ranks[as_index(rank)].island, islands.size());
    if (is_new) islands.emplace_back();
    islands[place->second].push_back(rank);
  }
  return islands;
}

// Reduce-scatter and all-gather are alike: each rank passes on all of the bytes except one part.
Phase inside(const std::vector<std::vector<int>>& islands, double bytes, Links& links) {
  Phase phase;
  for (const std::vector<int>& island : islands) {
    if (island.size() < 2) continue;
    const auto others = static_cast<double>(island.size() - 1);
    const double part = others / (others + 1) * bytes;
    phase.latency = std::max(phase.latency, add_ring(island, part, others, links, phase));
  }
  return phase;
}

// Runs as many parallel rings as each island has leads, each with its part.
Phase between(const std::vector<std::vector<int>>& islands, double bytes, const Plan& plan, Links& links) {
  std::size_t leads = islands.front().size();
  for (const std::vector<int>& island : islands) leads = std::min(leads, island.size());
  if (plan.reduction.leads > 0) leads = std::min(leads, as_index(plan.reduction.leads));
  const auto others = static_cast<double>(islands.size() - 1);
  const double part = 2 * others / (others + 1) * bytes / static_cast<double>(leads);
  Phase phase;
  for (std::size_t lead = 0; lead < leads; ++lead) {
    std::vector<int> ring;
    for (const std::vector<int>& island : islands) ring.push_back(island[lead]);
    phase.latency = std::max(phase.latency, add_ring(ring, part, 2 * others, links, phase));
  }
  return phase;
}

}  // namespace

std::vector<Phase> phases_of(const std::vector<int>& ranks, double bytes, const Plan& plan, Links& links) {
  if (ranks.size() < 2 || bytes <= 0) return {};
  const std::vector<std::vector<int>> islands = by_island(ranks, plan);
  if (!plan.reduction.is_hierarchical || islands.size() == 1 || islands.size() == ranks.size()) {
    Phase ring;
    const auto others = static_cast<double>(ranks.size() - 1);
    ring.latency = add_ring(ranks, 2 * others / (others + 1) * bytes, 2 * others, links, ring);
    return {std::move(ring)};
  }
  std::vector<Phase> phases = {inside(islands, bytes, links), between(islands, bytes, plan, links),
                               inside(islands, bytes, links)};
  if (!plan.reduction.is_pipelined) return phases;
  Phase all;
  for (const Phase& phase : phases) {
    all.flows.insert(all.flows.end(), phase.flows.begin(), phase.flows.end());
    all.latency += phase.latency;
  }
  return {std::move(all)};
}

}  // namespace atl::plan::simulated
