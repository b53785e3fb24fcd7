// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "bench/fleet/fleet.h"

namespace atl::plan::fleet {

/// Returns a lower bound in seconds on the long-run sum of the robots' mean times, whatever their plans, candidates or
/// not, and whatever the order on radio and server. A robot that infers every T seconds uses parts of the radio's time
/// and of the server's, whose sums are at most what is available; and for any weights of robot, radio and server that
/// add up to 1, its plan's weighted sum of busy times is at least a minimum cut (FluidBounds::least). So its mean time
/// is at least a decreasing function of its parts. The least sum of these functions over all ways to distribute the
/// parts is bounded by prices for the parts (Everett, "Generalized Lagrange multiplier method for solving problems of
/// optimum allocation of resources", 1963): parts are evaluated on a grid, each cell with the price of its lower and
/// the time of its upper end, and the best of many prices is taken. On full-duplex links only the way up counts as
/// shared. Candidates are ignored. Throws as FleetSimulator.
double fleet_bound(std::span<const FleetRobot> robots, const Shared& shared);

}  // namespace atl::plan::fleet
