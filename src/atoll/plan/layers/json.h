// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

/// A request as docs/plan-layers.md describes it. Throws Error(kInvalidArgument) that names the key, also for one that
/// is not known, and as `check`.
LayerRequest layers_from_json(const std::string& text);

/// plan_layers with request and answer in JSON.
std::string plan_layers_json(const std::string& request);

/// price_layers for the plan under "plan" of a request in JSON; the batch is what the plan's pipelines do.
std::string price_layers_json(const std::string& request);

}  // namespace atl::plan
