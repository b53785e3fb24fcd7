// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/topology.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "atoll/core/error.h"

namespace atl::collectives {
namespace {

// Returns, by island, the sum of the rates that its ranks state. Rates are relative to one another, so all islands or
// none must state one.
std::vector<double> uplinks_of(const Topology& topology, const std::vector<double>& uplink) {
  std::vector<double> sums(topology.islands.size(), 0.0);
  bool stated = false;
  for (std::size_t rank = 0; rank < uplink.size(); ++rank) {
    if (!std::isfinite(uplink[rank])) {
      throw Error(ErrorKind::kInvalidArgument,
                  "rank " + std::to_string(rank) + " states an uplink rate that is not finite");
    }
    if (uplink[rank] <= 0) continue;
    sums[static_cast<std::size_t>(topology.island_of[rank])] += uplink[rank];
    stated = true;
  }
  if (!stated) return std::vector<double>(sums.size(), 1.0);
  for (std::size_t island = 0; island < sums.size(); ++island) {
    if (sums[island] > 0) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "island \"" + topology.labels[island] + "\" (lowest rank " +
                    std::to_string(topology.islands[island].front()) +
                    ") states no uplink rate, but another island does: state one for every island or for none");
  }
  return sums;
}

}  // namespace

Topology Topology::from_labels(const std::vector<std::string>& labels, const std::vector<double>& uplink,
                               bool flat_reduce) {
  if (labels.empty()) throw Error(ErrorKind::kInvalidArgument, "a group needs at least one rank");
  if (!uplink.empty() && uplink.size() != labels.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(labels.size()) + " ranks have " + std::to_string(uplink.size()) + " uplink rates");
  }
  Topology topology;
  topology.size = static_cast<int>(labels.size());
  topology.flat_reduce = flat_reduce;
  std::unordered_map<std::string, int> known;
  for (int rank = 0; rank < topology.size; ++rank) {
    const std::string& label = labels[static_cast<std::size_t>(rank)];
    const auto [found, is_new] = known.try_emplace(label, static_cast<int>(topology.islands.size()));
    if (is_new) {
      topology.islands.emplace_back();
      topology.labels.push_back(label);
    }
    topology.islands[static_cast<std::size_t>(found->second)].push_back(rank);
    topology.island_of.push_back(found->second);
  }
  topology.uplinks = uplinks_of(topology, uplink);
  topology.libraries.resize(topology.islands.size());
  topology.devices.resize(topology.islands.size(), "cpu");
  return topology;
}

bool Topology::has_staged_chunks() const {
  return has_leads() || std::ranges::any_of(devices, [](const std::string& device) { return device != "cpu"; });
}

const std::vector<int>& Topology::island_with(int rank) const {
  return islands[static_cast<std::size_t>(island_of[static_cast<std::size_t>(rank)])];
}

int Topology::place_in_island(int rank) const {
  const std::vector<int>& members = island_with(rank);
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

bool Topology::has_leads() const {
  if (islands.size() < 2 || flat_reduce) return false;
  for (std::size_t island = 0; island < islands.size(); ++island) {
    if (islands[island].size() > 1 && !libraries[island].empty()) return true;
  }
  return false;
}

}  // namespace atl::collectives
