// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// ModuleWatch: whether the dicts and tensors of a module are as they were.
void bind_watch(pybind11::module_& module);

}  // namespace atl::pytorch
