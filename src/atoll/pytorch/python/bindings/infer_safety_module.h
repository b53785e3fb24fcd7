// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds a server's admission of models to the module: infer_admit, infer_admitted_operators.
void bind_infer_safety(pybind11::module_& module);

}  // namespace atl::pytorch
