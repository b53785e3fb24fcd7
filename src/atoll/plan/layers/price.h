// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/layers/costs.h"

namespace atl::plan {

/// Prices a pipeline of these stages, of which begin, end, device and recompute are read, without the communication
/// between pipelines.
LayerPipeline priced(const LayerCosts& costs, std::vector<LayerStage> stages, std::int64_t micro_batches);

/// Assembles the plan of these priced pipelines: numbers its devices class by class, adds the reduction of gradients
/// between pipelines, and computes the totals.
LayerPlan assembled(const LayerCosts& costs, std::vector<LayerPipeline> pipelines);

}  // namespace atl::plan
