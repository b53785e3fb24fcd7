// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds the region rules to the module: infer_split, infer_slice, infer_dims. Graphs and answers are JSON texts.
void bind_infer(pybind11::module_& module);

}  // namespace atl::pytorch
