// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"
#include "atoll/plan/layers/stages.h"
#include "atoll/plan/numbers.h"

namespace atl::plan {

/// Relative difference between sums of the same seconds in another order.
inline constexpr double kPipelineRounding = 1e-12;

/// Returns all arrangements for classes with devices; one without restrictions if nothing is tied. Throws
/// Error(kInvalidArgument) above 4096.
std::vector<TieCase> tie_cases(const LayerCosts& costs, const std::vector<std::int64_t>& counts);

/// Returns the fastest pipeline of `counts` devices by class for this number of micro-batches; none if nothing fits the
/// memories, or if nothing takes less than `cutoff` seconds. Exact for LayerPipeline::seconds over cuts, orders of
/// devices, recomputation by stage and the places of ties; with `leave_out` also over which devices have a stage.
///
/// The objective is weight * period + fill. Steps: for each arrangement of the ties, the cheapest fill under a limit of
/// the period (StageSearch) is a decreasing step function of the limit; the limits that can matter are the seconds of
/// some stage, above the least period and below (cutoff - least fill) / weight. Intervals of them are halved, those of
/// the best bound first, until no bound is below the best pipeline. A probe that ends at a shorter period than its
/// limit settles all limits between.
std::optional<LayerPipeline> best_pipeline(const LayerCosts& costs, const std::vector<std::int64_t>& counts,
                                           std::int64_t micro_batches, bool leave_out, double cutoff = kInfinity);

/// Returns whether any stages fit the memories, each with `extra_bytes` more. Exact, and never slower than
/// best_pipeline.
bool pipeline_fits(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches,
                   bool leave_out, double extra_bytes = 0);

/// Returns a lower bound on the seconds of any pipeline of these devices.
double pipeline_bound(const LayerCosts& costs, const std::vector<std::int64_t>& counts, std::int64_t micro_batches);

/// Returns the ranges of an interleaved pipeline: chunks() for each device, where range c is on device c mod p of p. Of
/// `pipeline`, which has one range for each device, the devices, their order, their micro-batches in flight and whether
/// they recompute are kept; the items are divided again. `seconds` is that of these ranges, where every boundary that
/// is crossed counts. None if there are fewer items than ranges, if a tie forbids the cuts, or if no division was found
/// that fits the memories.
///
/// Steps: (1) the division whose longest range is shortest, by a dynamic program over (range, end); (2) an item moves
/// from one range to another, shifting those between by one, while this makes devices fit or the step shorter. The
/// second step is a heuristic with a budget: its result is good, but not proved to be the best. O(ranges * items^2) for
/// the first, at most 2^22 ranges evaluated for the second.
std::optional<LayerPipeline> chunked(const LayerCosts& costs, const LayerPipeline& pipeline);

}  // namespace atl::plan
