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

/// Returns the chunks of all lists: first the first one of each, then the second ones.
std::vector<Chunk> in_turns(std::vector<std::vector<Chunk>> lists);

/// Cuts one message into blocks and each block into one slice per rank, sized by owner_shares.
std::vector<Chunk> cut_for_owners(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                  const ScheduleLimits& limits);

/// Returns the share of the results that each rank owns (the sum is 1). With one or two islands all shares are equal.
/// With more, shares are equal inside an island, and are divided among islands so that the slowest link to the bridge
/// is the bottleneck as little as possible; a slow island may own nothing.
std::vector<double> owner_shares(const Topology& topology);

}  // namespace atl::collectives
