// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

/// Reads a plan from JSON; docs/simulate.md describes its keys. Throws Error(kInvalidArgument) that names the key if it
/// is invalid or unknown, and as check().
Plan plan_of(const std::string& text);

/// Simulates a plan in JSON and returns the answer in JSON, as docs/simulate.md describes it.
std::string simulate_json(const std::string& text);

/// Simulates a plan in JSON and returns a Chrome trace: a process for each island, with a track of computing for each
/// rank and tracks of its sends and of the reductions in which it takes part.
std::string trace_json(const std::string& text);

/// Returns the actions of each place under a named schedule, as JSON: [["0F0", "0F1", ...], ...]. Throws as order_of
/// and actions_of.
std::string actions_json(const std::string& schedule, int places, int stages, int micro_batches);

}  // namespace atl::plan::simulated
