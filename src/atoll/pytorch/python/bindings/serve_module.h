// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds the server of split inference to the module: InferServer, make_key_file.
void bind_serve(pybind11::module_& module);

}  // namespace atl::pytorch
