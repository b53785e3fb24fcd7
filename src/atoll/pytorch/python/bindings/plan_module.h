// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds the planner to the module: costs, splits, permutations. Requests and answers are Python dictionaries with the
/// keys of the planner's JSON.
void bind_plan(pybind11::module_& module);

}  // namespace atl::pytorch
