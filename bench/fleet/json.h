// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::plan::fleet {

/// Plans several robots on one server and one radio by each policy; docs/planning.md ("Several robots") describes the
/// JSON of request and answer. Throws Error(kInvalidArgument) that names the key if the request is invalid or a key
/// unknown, and as make_table, FleetSimulator and plan_fleet.
std::string plan_fleet_json(const std::string& request);

}  // namespace atl::plan::fleet
