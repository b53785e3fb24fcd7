// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/json/fields.h"
#include "atoll/plan/batches/batches.h"

namespace atl::plan {

/// A rank as a JSON object: "name", "cost"; "least", "most", "quantum"; "busy_watts" and "idle_watts"; "ops",
/// "memory_used", "latency", "latencies". All but "cost" may be absent.
json::Json write_rank(const Rank& rank);
Rank read_rank(const json::Json& value, std::size_t place);

json::Json write_metrics(const Metrics& metrics);
/// Reads the keys "ops", "memory_used", "latency" and "latencies" of `fields`; `name` names their rank in errors.
Metrics read_metrics(json::Fields& fields, const std::string& name);

/// Reads the list of ranks under "ranks".
std::vector<Rank> read_ranks(json::Fields& fields);

}  // namespace atl::plan
