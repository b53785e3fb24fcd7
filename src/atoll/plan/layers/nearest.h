// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

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
