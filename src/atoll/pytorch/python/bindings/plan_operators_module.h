// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds what plans divided inferences.
void bind_plan_operators(pybind11::module_& module);

}  // namespace atl::pytorch
