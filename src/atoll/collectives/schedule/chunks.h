// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// What is written by an operation of at least so many bytes is no longer in a core's caches when the operation ends.
inline constexpr std::uint64_t kLargerThanCaches = std::uint64_t{8} << 20;

/// A part of one message that travels as one frame.
struct Chunk {
  int owner = 0;
  std::uint32_t segment = 0;  ///< the message; 0 where the operation has one
  std::uint64_t offset = 0;   ///< bytes from the message's start
  std::uint64_t bytes = 0;
  std::uint64_t round = 0;  ///< number among the chunks of its owner
  /// By island: the rank that leads it. Empty: ranks take turns (Tree::lead_of_child).
  std::vector<int> leads = {};
};

/// Preferred bytes of a chunk of an operation that moves `total_bytes`: a few chunks stay in a core's cache between the
/// steps that touch them, and there are enough of them to overlap all stages. Large operations take the largest frames,
/// because each costs about a microsecond; over a bridge, where a chunk's time on the wire cannot be hidden, only very
/// large ones do, to keep schedules short.
std::uint64_t chunk_bytes(const Topology& topology, std::uint64_t total_bytes, std::uint64_t element_bytes,
                          const ScheduleLimits& limits);

/// Where `parts` nearly equal parts of `elements` elements begin, and the end: parts + 1 values. Inner borders are
/// multiples of 64 bytes where parts are at least that large; parts at the end may be empty.
std::vector<std::uint64_t> cut_evenly(std::uint64_t elements, std::uint64_t parts, std::uint64_t element_bytes);

/// The chunks of one message of `bytes` bytes, all of `owner`; at least one, which may be empty. None exceeds
/// `most_bytes`.
std::vector<Chunk> cut_message(std::uint64_t bytes, std::uint64_t most_bytes, std::uint64_t element_bytes, int owner,
                               std::uint32_t segment);

/// Chunks of messages that travel at the same time (message s belongs to owner s), in turns: first those of round 0.
std::vector<Chunk> cut_messages(const Topology& topology, const std::vector<std::uint64_t>& counts,
                                std::uint64_t element_bytes, const ScheduleLimits& limits);

/// Cuts one message into blocks and each block into one slice per rank, sized by owner_shares.
std::vector<Chunk> cut_for_owners(const Topology& topology, std::uint64_t bytes, std::uint64_t element_bytes,
                                  const ScheduleLimits& limits);

/// The share of the results that each rank owns (sum 1). Two islands or one: all ranks the same. More: equal inside an
/// island, and by island so that the slowest way to the bridge is as little in the way as possible; a slow island may
/// own nothing.
std::vector<double> owner_shares(const Topology& topology);

}  // namespace atl::collectives
