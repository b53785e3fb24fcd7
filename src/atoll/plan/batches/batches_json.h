// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/batches/batches.h"
#include "atoll/plan/json_fields.h"

namespace atl::plan {

/// A rank as a JSON object: "name", "cost"; "least", "most", "quantum"; "busy_watts" and "idle_watts"; "ops",
/// "memory_used", "latency", "latencies". All but "cost" may be absent.
Json write_rank(const Rank& rank);
Rank read_rank(const Json& value, std::size_t place);

Json write_metrics(const Metrics& metrics);
/// Reads the keys "ops", "memory_used", "latency" and "latencies" of `fields`; `name` names their rank in errors.
Metrics read_metrics(Fields& fields, const std::string& name);

/// Reads the list of ranks under "ranks".
std::vector<Rank> read_ranks(Fields& fields);

}  // namespace atl::plan
