// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/plan_fleet_module.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "atoll/plan/fleet/json.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

void bind_plan_fleet(py::module_& module) {
  module.def(
      "plan_fleet",
      [](const std::string& request) { return translated([&] { return plan::plan_fleet_json(request); }); },
      py::arg("request"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace atl::pytorch
