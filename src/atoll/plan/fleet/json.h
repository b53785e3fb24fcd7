// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::plan {

/// What several robots on one server and one radio do under each policy, as a request and its answer in JSON; docs/
/// planning.md ("Several robots") has both. Error(kInvalidArgument) that names the key, also for one that is not known,
/// and as make_table, FleetSimulator and plan_fleet.
std::string plan_fleet_json(const std::string& request);

}  // namespace atl::plan
