// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds plan_layers and price_layers: stages of pipelines on unlike devices. Requests and answers are JSON texts.
void bind_plan_layers(pybind11::module_& module);

}  // namespace atl::pytorch
