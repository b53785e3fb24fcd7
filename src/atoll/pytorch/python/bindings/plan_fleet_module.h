// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds plan_fleet: plans for several robots on one server and one radio. Request and answer are JSON texts.
void bind_plan_fleet(pybind11::module_& module);

}  // namespace atl::pytorch
