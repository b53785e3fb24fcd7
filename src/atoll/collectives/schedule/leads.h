// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/schedule/chunks.h"
#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

// For groups with a library inside an island (Topology::has_leads). So that the bridge can start where the library's
// reduce_scatter ends, and end where its all_gather starts, the ranks of an island lead equal consecutive parts of
// each message that crosses the bridge; of a small message, the island's first rank leads all.

/// Returns how many of a message's `elements` each rank of an island of `island_size` leads, the last ones fewer: the
/// i-th rank leads those from i times this number on.
std::uint64_t led_elements(std::uint64_t elements, std::uint64_t element_bytes, std::uint64_t island_size,
                           const ScheduleLimits& limits);

/// Return what a rank whose library works inside the island brings to the bridge, and what it gets from there: ranges
/// of its input (the island's fold if the operation reduces) and of its output. May be empty. `shape.library_inside` is
/// set.
std::vector<Range> led_inputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits);
std::vector<Range> led_outputs(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits);

/// Returns the chunks of all_reduce's one message, owned by leads in proportion to owner_shares.
std::vector<Chunk> cut_for_leads(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                 const ScheduleLimits& limits);

/// Returns the chunks of messages of given owners that travel at the same time, in turns: first those of round 0.
/// `counts` is in elements. In any group: without leads, ranks take turns.
std::vector<Chunk> cut_messages(const Topology& topology, const std::vector<std::uint64_t>& counts,
                                const std::vector<int>& owners, std::uint64_t element_bytes,
                                const ScheduleLimits& limits);

/// Returns the first rank of each island.
std::vector<int> first_ranks(const Topology& topology);

}  // namespace atl::collectives
