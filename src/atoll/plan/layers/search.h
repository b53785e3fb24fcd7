// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"
#include "atoll/plan/layers/placements.h"

namespace atl::plan {

struct LayerSearch {
  std::optional<LayerPlan> plan;  ///< none where nothing fits
  LayerProof proof;
};

/// The best plan over micro-batch sizes, numbers of replicas, placements and shares. A class may have a count of 0
/// here. Choices go by their bounds, the lowest first, and end when a bound is above the best plan. For a placement,
/// the shares are exact: a pipeline's time does not fall with its micro-batches, so a better plan exists only if the
/// most micro-batches that each pipeline does in less time add up to all of them. Without gradients to reduce the whole
/// search is exact; with them, they are priced for each plan that is looked at, of which there is one for each
/// placement and step down in time.
LayerSearch search_layers(const LayerRequest& request);

/// No plan at this micro-batch size with so many pipelines takes less.
double step_bound(const LayerCosts& costs, std::int64_t replicas);

/// Devices by class.
std::vector<std::int64_t> counts_of(const LayerRequest& request);

}  // namespace atl::plan
