// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// The results of an operation of at least this size have left a core's caches when the operation ends.
inline constexpr std::uint64_t kLargerThanCaches = std::uint64_t{8} << 20;

/// A part of one message that travels as one frame.
struct Chunk {
  int owner = 0;
  std::uint32_t segment = 0;  ///< the message; 0 where the operation has one
  std::uint64_t offset = 0;   ///< bytes from the message's start
  std::uint64_t bytes = 0;
  std::uint64_t round = 0;  ///< index among the chunks of its owner
  /// By island: the rank that leads the chunk. Empty: ranks take turns (Tree::lead_of_child).
  std::vector<int> leads = {};
};

/// Returns the preferred bytes of a chunk for an operation that moves `total_bytes`: small enough that a few chunks
/// stay in a core's cache between the steps that touch them, and that there are enough of them to overlap all stages.
/// Large operations use the largest frames, because each frame costs about a microsecond; over a bridge, where a
/// chunk's time on the wire cannot be hidden, only very large ones do, to keep schedules short.
std::uint64_t chunk_bytes(const Topology& topology, std::uint64_t total_bytes, std::uint64_t element_bytes,
                          const ScheduleLimits& limits);

/// Returns where `parts` nearly equal parts of `elements` elements begin, and the end: parts + 1 values. Inner borders
/// are multiples of 64 bytes if parts are at least that large; parts at the end may be empty.
std::vector<std::uint64_t> cut_evenly(std::uint64_t elements, std::uint64_t parts, std::uint64_t element_bytes);

/// Returns the chunks of one message of `bytes` bytes, all of `owner`: at least one, which may be empty. None exceeds
/// `max_bytes`.
std::vector<Chunk> cut_message(std::uint64_t bytes, std::uint64_t max_bytes, std::uint64_t element_bytes, int owner,
                               std::uint32_t segment);

/// Returns the chunks of all_reduce's one message: blocks, each cut into one slice per rank in proportion to
/// owner_shares, or into one per island, which its lead owns.
std::vector<Chunk> cut_for_owners(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                  const ScheduleLimits& limits);

/// Returns the chunks of messages of given owners that travel at the same time, in turns: first those of round 0.
/// `counts` is in elements.
std::vector<Chunk> cut_messages(const Topology& topology, const std::vector<std::uint64_t>& counts,
                                const std::vector<int>& owners, std::uint64_t element_bytes,
                                const ScheduleLimits& limits);

/// Returns the share of the results that each rank owns (the sum is 1). With one or two islands all shares are equal.
/// With more, shares are equal inside an island, and are divided among islands so that the slowest link to the bridge
/// is the bottleneck as little as possible; a slow island may own nothing.
std::vector<double> owner_shares(const Topology& topology);

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

/// Returns the first rank of each island.
std::vector<int> first_ranks(const Topology& topology);

}  // namespace atl::collectives
