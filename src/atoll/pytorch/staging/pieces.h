// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/group/group.h"

namespace atl::pytorch {

/// Cuts a collective call into smaller ones of the same operation, one after another, so that one piece crosses the bridge while
/// the next comes from the device and the one before goes back to it. All ranks of a group cut alike, wherever their tensors
/// are: by what all of them know of the call. Each piece holds the same byte range of every segment. Gather, scatter and
/// all_to_all, whose sizes a rank knows in part, stay one call, which comes and goes in parts (inner/piece.h).
std::vector<collectives::Call> cut_into_pieces(const collectives::Call& call, const collectives::Topology& topology);

/// Most bytes of a piece's segments together (a little less, so that islands can share a piece equally).
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;

/// Bytes of the parts in which a message of `bytes` passes between a device and the host, while others of them cross the
/// network: enough for a copy's full rate, and few parts, because each has an event.
std::uint64_t part_bytes_of(std::uint64_t bytes);

}  // namespace atl::pytorch
