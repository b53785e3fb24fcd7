// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/json/fields.h"
#include "atoll/plan/batches/policies.h"

namespace atl::plan {

json::Json write_plan(const BatchPlan& plan);
/// Reads a request's keys; the caller may read keys of its own from `fields`, and must call done().
Request read_request(json::Fields& fields);

}  // namespace atl::plan
