// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace atl::pytorch {

/// Adds infer_profile, infer_server_profile, infer_profiled_operators, infer_packing_loss.
void bind_profile(py::module_& module);

}  // namespace atl::pytorch
