// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "atoll/plan/fleet/fleet.h"

namespace atl::plan {

/// Seconds that the sum of the robots' mean times does not undercut in the long run, whatever their plans, candidates
/// or not, and whatever the order on radio and server. A robot that infers every T seconds has parts of the radio's
/// time and of the server's, whose sums are at most what there is; and whatever weights of robot, radio and server add
/// up to 1, its plan's weighted sum of busy times is at least a minimum cut (FluidBounds::least). So its mean time is
/// at least a falling function of the parts it has. The least sum of these functions over all ways to give the parts
/// away is bounded by prices for the parts (Everett, "Generalized Lagrange multiplier method for solving problems of
/// optimum allocation of resources", 1963): parts are looked at on a grid, each cell with the price of its lower and
/// the time of its upper end, and the best of many prices is taken. With links that are full duplex only the way up
/// counts as shared. Error(kInvalidArgument) as FleetSimulator; candidates are not used.
double fleet_bound(std::span<const FleetRobot> robots, const Shared& shared);

}  // namespace atl::plan
