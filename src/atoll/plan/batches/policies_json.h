// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/batches/policies.h"
#include "atoll/plan/json_fields.h"

namespace atl::plan {

Json write_plan(const BatchPlan& plan);
/// Reads a request's keys; the caller asks `fields` for keys of its own and ends with done().
Request read_request(Fields& fields);

}  // namespace atl::plan
