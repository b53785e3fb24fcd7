// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/collectives/group.h"

namespace atl::pytorch {

/// Cuts a collective call into smaller ones of the same operation, one after another, so that one piece crosses the bridge while
/// the next comes from the device and the one before goes back to it. All ranks of a group cut alike, wherever their tensors
/// are: by what all of them know of the call. Each piece holds the same byte range of every segment; gather, scatter and
/// all_to_all, whose sizes a rank knows in part, stay whole.
std::vector<collectives::Call> cut_into_pieces(const collectives::Call& call, const collectives::Topology& topology);

/// Most bytes of a piece's segments together (a little less, so that islands can share a piece equally).
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;

}  // namespace atl::pytorch
