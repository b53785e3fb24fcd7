// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"
#include "atoll/plan/layers/placements.h"

namespace atl::plan {

struct LayerSearch {
  std::optional<LayerPlan> plan;  ///< none if nothing fits
  LayerProof proof;
};

/// Returns the best plan over micro-batch sizes, numbers of replicas, placements and divisions of micro-batches. A
/// class may have a count of 0 here. Candidates are taken in the order of their bounds, the lowest first, until a bound
/// is above the best plan. For a placement the division is exact: a pipeline's time does not decrease with its
/// micro-batches, so a better plan exists only if the largest numbers of micro-batches that the pipelines do in less
/// time add up to all of them. Without gradients to reduce the whole search is exact; with them, they are priced for
/// each plan that is evaluated: one for each placement and step down in time.
LayerSearch search_layers(const LayerRequest& request);

/// Returns a lower bound for any plan at this micro-batch size with this number of pipelines.
double step_bound(const LayerCosts& costs, std::int64_t replicas);

/// Returns the number of devices by class.
std::vector<std::int64_t> counts_of(const LayerRequest& request);

}  // namespace atl::plan
