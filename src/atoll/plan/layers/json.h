// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/json/parse.h"
#include "atoll/plan/layers/layers.h"

namespace atl::plan {

/// The names of LayerSchedule.
inline constexpr const char* kScheduleNames[] = {"1f1b", "gpipe", "interleaved", "zero-bubble"};

/// Reads a request as docs/plan-layers.md describes it. Throws Error(kInvalidArgument) that names the key if the
/// request is invalid or a key unknown, and as `check`.
LayerRequest layers_from_json(const std::string& text);

/// Runs plan_layers with request and answer in JSON.
std::string plan_layers_json(const std::string& request);

/// Runs price_layers for the plan under "plan" of a request in JSON; the batch follows from the plan's pipelines.
std::string price_layers_json(const std::string& request);

/// Writes the answer of plan_layers as docs/plan-layers.md describes it.
json::Json write_answer(const LayerRequest& request, const LayerAnswer& answer);

/// Writes a priced plan in the same form; if it does not fit, with the reason and the nearest plan that does.
json::Json write_priced(const LayerRequest& request, const LayerPlan& plan);

}  // namespace atl::plan
