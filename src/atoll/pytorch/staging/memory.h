// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Whether a strided tensor's storage holds all its elements. It does not where it was resized away, as FSDP does with
/// sharded parameters, nor in fake tensors and wrappers, which have none.
bool has_memory(const at::Tensor& tensor);

/// Whether the elements can be written: false for a file that is mapped for reading only. Asks the system for memory that
/// PyTorch has not allocated, on the CPU; true elsewhere.
bool is_writable(const at::Tensor& tensor);

}  // namespace atl::pytorch
