// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds split inference to the module: infer_dims (`choose_dims` and `count` of a graph, as JSON texts), a server's
/// admission of models (infer_admit, infer_admitted_operators), and sessions, servers and profiles.
void bind_infer(pybind11::module_& module);

}  // namespace atl::pytorch
