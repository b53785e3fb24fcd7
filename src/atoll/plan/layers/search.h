// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "atoll/plan/layers/costs.h"

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

/// Explains a request that nothing fits: the reason, the stage that lacks the most memory in the plan that lacks the
/// least, and what makes a plan feasible: recomputation, 1F1B, a smaller micro-batch, fewer replicas, devices left out,
/// or the number of bytes to add on each device, exact to the byte. Each is tried alone; those that help are listed,
/// the fastest first. Replicas are tried by bisection, which assumes that what fits in some number of pipelines also
/// fits in fewer, with more devices each.
void explain_infeasible(const LayerRequest& request, LayerAnswer& answer);

/// Explains a priced plan that does not fit: `plan`, the reason, the stage that lacks the most memory, and the nearest
/// plan that fits: the fastest other stages for the same batch, micro-batches, number of pipelines and devices in use;
/// if there are none, the changes of `explain_infeasible`.
LayerAnswer explain_given(const LayerRequest& request, const LayerPlan& plan);

}  // namespace atl::plan
