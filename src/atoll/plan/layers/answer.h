// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/json/parse.h"
#include "atoll/plan/layers/layers.h"

namespace atl::plan {

/// Writes the answer of plan_layers as docs/plan-layers.md describes it.
json::Json write_answer(const LayerRequest& request, const LayerAnswer& answer);

/// Writes a priced plan in the same form; if it does not fit, with the reason and the nearest plan that does.
json::Json write_priced(const LayerRequest& request, const LayerPlan& plan);

}  // namespace atl::plan
