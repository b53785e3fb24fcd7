// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>

#include "atoll/collectives/group/group.h"

// Messages straight between the memory of tensors, beside those of a group: to measure that way against rings of chunks.
// Tensors are contiguous and a device is done with them; both ends agree on the numbers, which no message under way has. All
// throw Error(kInvalidArgument) where no such message can be.
namespace atl::pytorch {

/// Makes the memory known to the devices of the path to `peer`, and forgets it again.
void remember_direct(const collectives::Group& group, int peer, const at::Tensor& tensor);
void forget_direct(const collectives::Group& group, int peer, const at::Tensor& tensor);

/// Sends or receives all of it, and waits until that is done. Throws what the link throws, and Error(kTimeout).
void pass_direct(const collectives::Group& group, int peer, std::uint64_t number, const at::Tensor& tensor, bool sends,
                 std::chrono::milliseconds timeout);

}  // namespace atl::pytorch
