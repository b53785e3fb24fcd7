// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/membership.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Set = std::vector<std::size_t>;
constexpr std::size_t kMaxForAllSets = 12;

double exposed_seconds(const Network& network, std::span<const std::size_t> ranks) {
  std::map<int, int> members;
  for (const std::size_t rank : ranks) ++members[network.islands[rank]];
  double inside = 0;
  for (const auto& [island, count] : members) {
    const double share = 2.0 * (count - 1) / count;
    const double rate = network.inside_bytes_per_second[static_cast<std::size_t>(island)];
    inside = std::max(inside, share * network.gradient_bytes / rate);
  }
  double bridge = 0;
  if (members.size() > 1) {
    const double share = 2.0 * static_cast<double>(members.size() - 1) / static_cast<double>(members.size());
    bridge = share * network.gradient_bytes / network.bridge_bytes_per_second + 2 * network.bridge_latency;
  }
  return (1 - network.overlap) * (inside + bridge);
}

// Returns the step of `set`, or none if the batch does not fit or its communication is unknown.
std::optional<double> step_of(std::span<const Rank> ranks, std::int64_t batch, const Communication& communication,
                              const Set& set) {
  const double exposed = communication(set);
  if (std::isnan(exposed)) return std::nullopt;
  std::vector<Rank> members;
  for (const std::size_t rank : set) members.push_back(ranks[rank]);
  try {
    return threshold(members, batch).seconds + exposed;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    return std::nullopt;
  }
}

std::vector<Set> sets_to_try(std::span<const Rank> ranks, std::int64_t batch) {
  std::vector<Set> sets;
  if (ranks.size() <= kMaxForAllSets) {
    for (std::size_t bits = 1; bits < std::size_t{1} << ranks.size(); ++bits) {
      Set set;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if ((bits >> rank & 1) != 0) set.push_back(rank);
      }
      sets.push_back(std::move(set));
    }
    return sets;
  }
  const std::int64_t share = std::max<std::int64_t>(1, batch / static_cast<std::int64_t>(ranks.size()));
  Set order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t rank) { return ranks[rank].cost.compute_seconds(share); });
  for (std::size_t count = 1; count <= order.size(); ++count) {
    Set set(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    std::sort(set.begin(), set.end());
    sets.push_back(std::move(set));
  }
  return sets;
}

Set all_but(std::size_t ranks, std::size_t absent) {
  Set set;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank != absent) set.push_back(rank);
  }
  return set;
}

std::string difference(double step, double reference) {
  if (!(reference > 0) || step == reference) return "as long as with all";
  return percent(std::abs(step / reference - 1)) + (step < reference ? " shorter" : " longer") + " than with all";
}

std::vector<std::string> advice_of(const Membership& result, const std::vector<std::string>& names) {
  std::vector<std::string> advice;
  for (std::size_t rank = 0; rank < names.size() && names.size() > 1; ++rank) {
    const auto& step = result.without[rank];
    const std::string name = rank_name(rank, names);
    const bool in_best = std::find(result.best.begin(), result.best.end(), rank) != result.best.end();
    if (!step && !result.all_step) {
      advice.push_back((in_best ? "keep " + name + ": it is in" : "leave out " + name + ": it is not in") +
                       " the best set, and the batch fits neither all ranks nor all others");
    } else if (!step) {
      advice.push_back("keep " + name + ": the batch does not fit the others alone");
    } else if (!result.all_step) {
      advice.push_back("leave out " + name + ": the batch does not fit all ranks");
    } else {
      advice.push_back((*step < *result.all_step ? "leave out " : "keep ") + name + ": without it a step is " +
                       difference(*step, *result.all_step));
    }
  }
  const bool is_all = result.best.size() == names.size();
  const auto name_of = [&](std::size_t rank) { return rank_name(rank, names); };
  advice.push_back("best: " + (is_all ? "all ranks" : joined(result.best, name_of)) + ", " + number(result.best_step) +
                   " s per step");
  if (!is_all && result.all_step) advice.back() += ", " + difference(result.best_step, *result.all_step);
  return advice;
}

}  // namespace

Communication communication_of(Network network, std::size_t ranks) {
  require_amount("the gradient's bytes", network.gradient_bytes);
  require_amount("the bridge's latency", network.bridge_latency);
  if (!(network.overlap >= 0 && network.overlap <= 1)) {
    refuse("the overlap is " + number(network.overlap) + ": give a share from 0 to 1");
  }
  if (network.islands.size() != ranks) {
    refuse(std::to_string(network.islands.size()) + " ranks have an island, but there are " + std::to_string(ranks) +
           ": give one for each");
  }
  std::set<int> islands;
  for (const int island : network.islands) {
    if (island < 0 || static_cast<std::size_t>(island) >= network.inside_bytes_per_second.size()) {
      refuse("island " + std::to_string(island) + " has no rate: give inside_bytes_per_second for each island");
    }
    islands.insert(island);
  }
  for (const double rate : network.inside_bytes_per_second) require_rate("a rate inside an island", rate);
  if (islands.size() > 1) require_rate("the bridge's rate", network.bridge_bytes_per_second);
  return [network = std::move(network)](std::span<const std::size_t> set) { return exposed_seconds(network, set); };
}

Communication communication_of(std::map<Set, double> table) {
  for (const auto& [set, seconds] : table) require_amount("a time of the table of sets", seconds);
  return [table = std::move(table)](std::span<const std::size_t> set) {
    const auto found = table.find(Set(set.begin(), set.end()));
    return found == table.end() ? std::nan("") : found->second;
  };
}

Membership membership(std::span<const Rank> ranks, std::int64_t batch, const Communication& communication,
                      std::vector<Set> sets) {
  if (ranks.empty()) refuse("a plan has no ranks: give at least one");
  Membership result;
  result.exact = !sets.empty() || ranks.size() <= kMaxForAllSets;
  if (sets.empty()) sets = sets_to_try(ranks, batch);
  result.all_step = step_of(ranks, batch, communication, all_but(ranks.size(), ranks.size()));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Set others = all_but(ranks.size(), rank);
    result.without.push_back(others.empty() ? std::nullopt : step_of(ranks, batch, communication, others));
    if (!result.exact) sets.push_back(std::move(others));
  }
  std::optional<double> shortest;
  for (Set& set : sets) {
    const auto step = step_of(ranks, batch, communication, set);
    if (!step || (shortest && (*step > *shortest || (*step == *shortest && set.size() >= result.best.size()))))
      continue;
    shortest = step;
    result.best = std::move(set);
  }
  if (!shortest) {
    threshold(ranks, batch);  // throws with the reason
    refuse("no set of ranks has both room for the global batch and a known time of communication");
  }
  result.best_step = *shortest;
  result.advice = advice_of(result, names_of(ranks));
  return result;
}

}  // namespace atl::plan
