// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/plan_operators_module.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "atoll/infer/profile.h"
#include "atoll/plan/operators/forecast.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

void bind_plan_operators(pybind11::module_& module) {
  module.def("operator_policies", &plan::operator_policies);
  module.def("forecasts", &plan::forecasts);
  module.def(
      "plan_operators",
      [](const std::string& request) { return translated([&] { return plan::plan_operators(request); }); },
      py::arg("request"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "check_infer_profile",
      [](const std::string& text) {
        return translated([&] { return infer::to_json(infer::profile_from_json(text)); });
      },
      py::arg("text"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace atl::pytorch
