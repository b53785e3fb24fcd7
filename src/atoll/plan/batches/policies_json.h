// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/batches/policies.h"
#include "atoll/plan/json_fields.h"

namespace atl::plan {

Json write_plan(const BatchPlan& plan);
/// Reads a request's keys; the caller may read keys of its own from `fields`, and must call done().
Request read_request(Fields& fields);

}  // namespace atl::plan
