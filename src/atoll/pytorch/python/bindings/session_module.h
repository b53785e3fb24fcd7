// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds InferSession: a session of split inference on PyTorch's operators.
void bind_session(pybind11::module_& module);

}  // namespace atl::pytorch
