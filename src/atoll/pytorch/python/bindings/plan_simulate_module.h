// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds the simulation of training steps: simulate, simulate_trace, pipeline_actions. Requests and answers are JSON
/// texts.
void bind_plan_simulate(pybind11::module_& module);

}  // namespace atl::pytorch
