// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

/// The plan that a JSON text describes; docs/simulate.md has its keys. Error(kInvalidArgument) that names the key, also
/// for one that is not known, and as check().
Plan plan_of(const std::string& text);

/// Simulates the plan that a JSON text describes and gives the answer, as docs/simulate.md has it.
std::string simulate_json(const std::string& text);

/// The same as a Chrome trace: a process for each island, in it for each rank a track of what it computes, and tracks
/// of what it sends and of the reductions in which it takes part.
std::string trace_json(const std::string& text);

/// For a schedule by name, what each place does, as JSON: [["0F0", "0F1", ...], ...]. Error(kInvalidArgument) as
/// order_of and actions_of.
std::string actions_json(const std::string& schedule, int places, int stages, int micro_batches);

}  // namespace atl::plan::simulated
