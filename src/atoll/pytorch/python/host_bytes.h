// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "atoll/infer/run/runner.h"

namespace atl::pytorch {

/// The tensor's values; not copied where they lie in host memory without gaps.
infer::HostBytes host_bytes_of(const at::Tensor& tensor);

}  // namespace atl::pytorch
