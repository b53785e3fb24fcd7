// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace atl::plan {

/// The devices by class of one or more equal pipelines.
struct PlacementPart {
  std::vector<std::int64_t> counts;
  std::int64_t times = 1;
  auto operator<=>(const PlacementPart&) const = default;
};

/// All devices, divided among pipelines.
using Placement = std::vector<PlacementPart>;

struct Placements {
  std::vector<Placement> all;
  bool complete = true;  ///< whether these are all
};

/// Returns the ways to divide `counts` devices by class among `replicas` pipelines of 1 to `most_devices` devices each,
/// each once: first devices dealt to the pipelines as evenly as possible, then pipelines of one class each, in
/// proportion to their devices, then all others, with equal pipelines before unequal ones. At most `most` ways.
Placements placements(const std::vector<std::int64_t>& counts, std::int64_t replicas, std::int64_t most_devices,
                      std::int64_t most);

}  // namespace atl::plan
