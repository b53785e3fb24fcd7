// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Replaces the sparse COO `tensor` by the coalesced sum of all ranks' tensors, added in rank order; the number of
/// entries may differ between ranks. Blocks. Throws ValueError on every rank if shapes or dtypes differ, TypeError for
/// a dtype that Atoll cannot reduce.
void all_reduce_sparse(collectives::Group& group, const at::Tensor& tensor, std::chrono::milliseconds timeout);

}  // namespace atl::pytorch
