// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace atl::plan {

/// Devices by class of equal pipelines, and how many such pipelines there are.
struct PlacementPart {
  std::vector<std::int64_t> counts;
  std::int64_t times = 1;
  bool operator==(const PlacementPart&) const = default;
};

/// All devices, divided among pipelines.
using Placement = std::vector<PlacementPart>;

struct Placements {
  std::vector<Placement> all;
  bool complete = true;  ///< whether there are no others
};

/// The ways to divide `counts` devices by class among `replicas` pipelines of 1 to `most_devices` devices each, each
/// once: first devices dealt to the pipelines as evenly as they go, then pipelines of one class each, in proportion to
/// their devices, then all others, with equal pipelines before unequal ones. No more than `most` ways.
Placements placements(const std::vector<std::int64_t>& counts, std::int64_t replicas, std::int64_t most_devices,
                      std::int64_t most);

}  // namespace atl::plan
