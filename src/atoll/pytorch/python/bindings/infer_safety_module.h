// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds a server's admission of models, and the sandbox, to the module: infer_admit, infer_admit_node,
/// infer_admitted_operators, infer_enter_sandbox.
void bind_infer_safety(pybind11::module_& module);

}  // namespace atl::pytorch
