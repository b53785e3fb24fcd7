// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

/// For a request that nothing fits: the reason, the stage that lacks most memory in the plan that lacks least, and what
/// makes a plan feasible: recomputation, 1F1B, a smaller micro-batch, fewer replicas, devices left out, or so many
/// bytes more on each device, to the byte. Each is tried alone; those that help are listed, the fastest first. Replicas
/// are tried by bisection, which takes for granted that what fits in some pipelines fits in fewer, with more devices.
void explain_infeasible(const LayerRequest& request, LayerAnswer& answer);

/// For a priced plan that does not fit: `plan`, the reason, its own stage that lacks most memory, and the nearest that
/// fits: the fastest other stages for the same batch, micro-batches, number of pipelines and devices in use; where there
/// are none, the changes of `explain_infeasible`.
LayerAnswer explain_given(const LayerRequest& request, const LayerPlan& plan);

}  // namespace atl::plan
