// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/links.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {
namespace {

// Returns by rank the first one with the same text.
template <typename Text>
std::vector<int> firsts(const std::vector<Rank>& ranks, Text text) {
  std::map<std::string, int> seen;
  std::vector<int> result;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    result.push_back(seen.emplace(text(ranks[as_index(i)]), i).first->second);
  }
  return result;
}

std::string described(const Rank& rank, int index) {
  return "rank " + std::to_string(index) + " (island " + rank.island + ", host " + rank.host + ")";
}

bool fits(const LinkRule& rule, const Rank& from, const Rank& to) {
  if (rule.between == Between::kHost && from.host != to.host) return false;
  if (rule.between == Between::kIsland && from.island != to.island) return false;
  if (rule.islands.empty()) return true;
  return (from.island == rule.islands[0] && to.island == rule.islands[1]) ||
         (from.island == rule.islands[1] && to.island == rule.islands[0]);
}

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

double tail_seconds(const Path& path, const Leg& leg, double bytes) {
  if (path.chunk_bytes <= 0 || leg.hop_rates.size() < 2 || bytes <= 0) return leg.latency;
  const double chunk = bytes / std::ceil(bytes / path.chunk_bytes);
  double sum = 0;
  for (const double rate : leg.hop_rates) sum += chunk / rate;
  return leg.latency + sum - chunk / *std::min_element(leg.hop_rates.begin(), leg.hop_rates.end());
}

double alone_seconds(const Path& path, double bytes) {
  double seconds = 0;
  for (const Leg& leg : path.legs) {
    seconds += tail_seconds(path, leg, bytes) + (leg.rails.empty() ? 0 : bytes / leg.most);
  }
  return seconds;
}

Links::Links(const Plan& plan)
    : plan_(plan),
      hosts_(firsts(plan.ranks, [](const Rank& rank) { return rank.host; })),
      islands_(firsts(plan.ranks, [](const Rank& rank) { return rank.island; })) {}

const LinkRule& Links::rule(const Ends& ends, bool is_reduction) const {
  const Rank& from = plan_.ranks[as_index(ends.from)];
  const Rank& to = plan_.ranks[as_index(ends.to)];
  for (const LinkRule& rule : plan_.links) {
    if ((is_reduction ? rule.for_reductions : rule.for_transfers) && fits(rule, from, to)) return rule;
  }
  refuse("no link rule says how " + described(from, ends.from) + " and " + described(to, ends.to) +
         (is_reduction ? " reduce gradients" : " send to each other") + ": add one with \"between\": \"any\"");
}

int Links::rail(int kind, int rank, bool is_out) {
  const Rail& rail = plan_.rails[as_index(kind)];
  int owner = rank;
  std::string where = plan_.ranks[as_index(rank)].name;
  if (rail.each == Each::kHost) {
    owner = hosts_[as_index(rank)];
    where = "host " + plan_.ranks[as_index(rank)].host;
  } else if (rail.each == Each::kIsland) {
    owner = islands_[as_index(rank)];
    where = "island " + plan_.ranks[as_index(rank)].island;
  } else if (rail.each == Each::kJob) {
    owner = 0;
    where = "job";
  }
  const bool is_counted_out = is_out || rail.is_half_duplex;
  const auto [place, is_new] = found_.try_emplace({kind, owner, is_counted_out}, rails_.rails());
  if (is_new) {
    const double rate = (is_counted_out ? rail.out : rail.in).of(plan_.ranks[as_index(owner)].island);
    rails_.add(rate * rail.count);
    kinds_.push_back({rail.name, where, rail.is_half_duplex ? "both" : is_out ? "out" : "in", 0, 0});
  }
  return place->second;
}

Leg Links::leg(const Hop& hop, const Ends& ends) {
  Leg leg;
  leg.latency = hop.latency;
  leg.most = hop.most_bytes_per_second;
  const Rail& kind = plan_.rails[as_index(hop.rail)];
  for (const bool is_out : {true, false}) {
    if (hop.end == (is_out ? End::kReceiver : End::kSender)) continue;
    const int index = rail(hop.rail, is_out ? ends.from : ends.to, is_out);
    const double share = hop.stripes > 0 ? static_cast<double>(std::min(hop.stripes, kind.count)) / kind.count : 1;
    leg.most = std::min(leg.most, rails_.bytes_per_second(index) * share);
    // If both ends share a rail, it counts once.
    if (leg.rails.empty() || leg.rails.front() != index) leg.rails.push_back(index);
  }
  leg.hop_rates = {leg.most};
  return leg;
}

Path Links::made(const Ends& ends, bool is_reduction) {
  const LinkRule& its = rule(ends, is_reduction);
  const Transport& transport = plan_.transports[as_index(its.transport)];
  Path path{its.transport, transport.is_blocking && !is_reduction, transport.chunk_bytes, {}};
  for (const Hop& hop : transport.hops) path.legs.push_back(leg(hop, ends));
  if ((transport.chunk_bytes <= 0 && !is_reduction) || path.legs.size() < 2) return path;
  Leg whole = path.legs.front();
  for (std::size_t i = 1; i < path.legs.size(); ++i) {
    const Leg& next = path.legs[i];
    whole.rails.insert(whole.rails.end(), next.rails.begin(), next.rails.end());
    whole.most = std::min(whole.most, next.most);
    whole.latency += next.latency;
    whole.hop_rates.push_back(next.most);
  }
  for (const int index : whole.rails) {
    const auto times = static_cast<double>(std::count(whole.rails.begin(), whole.rails.end(), index));
    whole.most = std::min(whole.most, rails_.bytes_per_second(index) / times);
  }
  path.legs = {std::move(whole)};
  return path;
}

const Path& Links::path(int from, int to, bool is_reduction) {
  const auto key = std::tuple(from, to, is_reduction);
  const auto found = paths_.find(key);
  if (found != paths_.end()) return found->second;
  Path path = plan_.links.empty() ? Path() : made({from, to}, is_reduction);
  return paths_.emplace(key, std::move(path)).first->second;
}

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
