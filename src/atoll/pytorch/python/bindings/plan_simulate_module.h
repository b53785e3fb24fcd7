// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds what a step of a training takes, simulated: texts of JSON in and out.
void bind_plan_simulate(pybind11::module_& module);

}  // namespace atl::pytorch
