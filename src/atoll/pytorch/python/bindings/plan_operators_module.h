// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds the planner of divided inferences: operator_policies, forecasts, plan_operators, check_infer_profile.
void bind_plan_operators(pybind11::module_& module);

}  // namespace atl::pytorch
