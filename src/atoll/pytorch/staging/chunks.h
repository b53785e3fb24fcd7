// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/group/group.h"

namespace atl::pytorch {

/// Cuts a collective call into consecutive smaller ones of the same operation, so that one chunk crosses the bridge
/// while the next is copied from the device and the previous one back to it. All ranks of a group cut alike, wherever
/// their tensors are, because they use only what all of them know of the call. Each chunk holds the same byte range of
/// every segment. Gather, scatter and all_to_all, of which a rank knows only its own sizes, stay one call, which is
/// copied in parts (staged_chunk.h).
std::vector<collectives::Call> cut_into_chunks(const collectives::Call& call, const collectives::Topology& topology);

/// The largest size of a chunk's segments together (chunks are slightly smaller, so that islands can share them
/// equally).
inline constexpr std::uint64_t kStagedChunkBytes = std::uint64_t{2} << 20;

/// The size of the parts in which a message of `bytes` is copied between a device and the host while other parts cross
/// the network: large enough for a copy's full rate, and not too many parts, because each has an event.
std::uint64_t part_bytes_of(std::uint64_t bytes);

}  // namespace atl::pytorch
