// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/plan_layers_module.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "atoll/plan/layers/json.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

void bind_plan_layers(py::module_& module) {
  module.def(
      "plan_layers",
      [](const std::string& request) { return translated([&] { return plan::plan_layers_json(request); }); },
      py::arg("request"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "price_layers",
      [](const std::string& request) { return translated([&] { return plan::price_layers_json(request); }); },
      py::arg("request"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace atl::pytorch
