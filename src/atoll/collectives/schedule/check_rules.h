// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives::detail {

/// Checks one rank's schedule by itself: ranges within their segments, peers, frame sizes, the lane rules of
/// schedule.h, and that the summary (peers, bytes sent) is correct. Returns a description of the first fault, or an
/// empty string.
std::string check_rules(const Topology& topology, const Shape& shape, int rank, const Schedule& schedule,
                        const ScheduleLimits& limits);

}  // namespace atl::collectives::detail
