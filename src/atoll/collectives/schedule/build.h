// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// Builds all_reduce, barrier, reduce, reduce_scatter, broadcast and all_gather: contributions go up a tree to a
/// chunk's owner, and results come down.
Schedule build_tree_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits);

/// Builds gather, scatter and all_to_all: each message goes straight to its receiver.
Schedule build_direct_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits);

}  // namespace atl::collectives
