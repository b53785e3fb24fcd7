// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Returns whether a strided tensor's storage holds all its elements. It does not if it was resized to nothing, as FSDP
/// does with sharded parameters; fake tensors and wrappers have no storage.
bool has_memory(const at::Tensor& tensor);

/// Returns whether the elements can be written: false for a file that is mapped read-only. Queries the system only for
/// CPU memory that PyTorch has not allocated; other memory counts as writable.
bool is_writable(const at::Tensor& tensor);

}  // namespace atl::pytorch
