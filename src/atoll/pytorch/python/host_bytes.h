// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "atoll/infer/run/runner.h"

namespace atl::pytorch {

/// Returns the tensor's values, without a copy if they are contiguous in host memory.
infer::HostBytes host_bytes_of(const at::Tensor& tensor);

}  // namespace atl::pytorch
