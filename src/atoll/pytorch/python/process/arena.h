// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "atoll/pytorch/aten/torch.h"
#include "atoll/transport/arena.h"

namespace atl::pytorch {

/// Returns this process's arena, with the budget of ATOLL_ARENA; nullptr if that is 0. Made on first use and never
/// destroyed, because tensors outlive groups; a forked child has one of its own. Any thread. Throws
/// Error(kInvalidArgument) naming the variable.
std::shared_ptr<transport::Arena> process_arena();

/// Returns the allocator of CPU tensors in that arena. When the arena has no memory left, it warns once and takes
/// ordinary memory. Any thread.
const std::shared_ptr<c10::Allocator>& arena_allocator();

/// Returns an uninitialised, contiguous CPU tensor from that allocator; its storage can be resized.
at::Tensor empty_in_arena(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace atl::pytorch
