// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"
#include "atoll/plan/numbers.h"

namespace atl::plan {

/// By which sums of the same seconds in another order may differ, as a share.
inline constexpr double kPipelineRounding = 1e-12;

/// The fastest pipeline of `counts` devices by class for so many micro-batches: none where nothing fits the memories,
/// or where nothing takes less than `cutoff` seconds. Exact for LayerPipeline::seconds over cuts, orders of devices,
/// recomputation by stage and the places of ties; with `leave_out` also over which devices have a stage.
///
/// The objective is weight * period + fill. Steps: for each way in which ties can lie, the cheapest fill under a limit
/// of the period (StageSearch) is a falling step function of the limit; limits that can matter are the seconds that
/// some stage takes, above the least period and below (cutoff - least fill) / weight. Intervals of them are halved,
/// those of the best bound first, until no bound is below the best pipeline. A probe that ends at a shorter period than
/// its limit settles all limits between.
std::optional<LayerPipeline> best_pipeline(const LayerCosts& costs, const std::vector<std::int64_t>& counts,
                                           std::int64_t micro_batches, bool leave_out, double cutoff = kInfinity);

/// Whether any stages keep to the memories, each `extra_bytes` larger. Never slower than the above; exact.
bool pipeline_fits(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches,
                   bool leave_out, double extra_bytes = 0);

/// No pipeline of these devices takes less.
double pipeline_bound(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches);

}  // namespace atl::plan
