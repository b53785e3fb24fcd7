// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/fleet/fleet.h"

namespace atl::plan::fleet {

/// Returns the seconds of each robot's inferences with the candidates of `choice`, as expected from how long the others
/// use radio and server: a fixed point of expected_wait() and expected_stretch(), in the manner of approximate mean
/// value analysis (Schweitzer, "Approximate analysis of multiclass closed networks of queues", 1979). Robots with a
/// period count as often as frames arrive. An estimate, not a bound, and much faster than a simulation.
std::vector<double> expected_seconds(const FleetSimulator& fleet, std::span<const std::size_t> choice);

}  // namespace atl::plan::fleet
