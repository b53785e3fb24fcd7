// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

/// Reads a request as docs/plan-layers.md describes it. Throws Error(kInvalidArgument) that names the key if the
/// request is invalid or a key unknown, and as `check`.
LayerRequest layers_from_json(const std::string& text);

/// Runs plan_layers with request and answer in JSON.
std::string plan_layers_json(const std::string& request);

/// Runs price_layers for the plan under "plan" of a request in JSON; the batch follows from the plan's pipelines.
std::string price_layers_json(const std::string& request);

}  // namespace atl::plan
