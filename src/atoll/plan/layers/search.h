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

/// The sizes of micro-batches and numbers of pipelines that a request allows.
struct LayerChoices {
  struct Choice {
    std::size_t costs = 0;  ///< index of the size
    std::int64_t replicas = 0;
    double bound = 0;  ///< no plan is faster
  };
  std::vector<LayerCosts> costs;
  std::vector<Choice> all;  ///< the lowest bound first
};
LayerChoices choices_of(const LayerRequest& request);

/// Returns the number of devices by class.
std::vector<std::int64_t> counts_of(const LayerRequest& request);

}  // namespace atl::plan
