// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/layers/costs.h"

namespace atl::plan {

/// Everything that a pipeline of these stages takes, of which begin, end, device and recompute are read; without what
/// happens between pipelines.
LayerPipeline priced(const LayerCosts& costs, std::vector<LayerStage> stages, std::int64_t micro_batches);

/// The plan of these priced pipelines: numbers its devices class by class, adds the reduction of gradients between
/// pipelines, and sums up.
LayerPlan assembled(const LayerCosts& costs, std::vector<LayerPipeline> pipelines);

}  // namespace atl::plan
