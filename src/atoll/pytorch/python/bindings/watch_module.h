// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds ModuleWatch, which detects changes of the dicts and tensors of a module.
void bind_watch(pybind11::module_& module);

}  // namespace atl::pytorch
