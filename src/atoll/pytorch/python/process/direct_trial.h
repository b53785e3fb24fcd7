// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>

#include "atoll/collectives/group/group.h"

// Messages directly between the memory of tensors, independent of those of a group, to compare this path with rings of
// chunks. Tensors must be contiguous and no device may be working on them. Both ends agree on message numbers, each
// used by one message at a time. All functions throw Error(kInvalidArgument) if such a message is not possible.
namespace atl::pytorch {

/// Registers the memory with the network devices on the path to `peer`, and unregisters it.
void remember_direct(const collectives::Group& group, int peer, const at::Tensor& tensor);
void forget_direct(const collectives::Group& group, int peer, const at::Tensor& tensor);

/// Sends or receives the whole tensor, and waits until that is done. Throws what the link throws, and Error(kTimeout).
void pass_direct(const collectives::Group& group, int peer, std::uint64_t number, const at::Tensor& tensor, bool sends,
                 std::chrono::milliseconds timeout);

}  // namespace atl::pytorch
