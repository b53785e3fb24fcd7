// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/plan_simulate_module.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "atoll/plan/simulate/json.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {

void bind_plan_simulate(py::module_& module) {
  module.def(
      "simulate",
      [](const std::string& text) { return translated([&] { return plan::simulated::simulate_json(text); }); },
      py::arg("plan"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "simulate_trace",
      [](const std::string& text) { return translated([&] { return plan::simulated::trace_json(text); }); },
      py::arg("plan"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "pipeline_actions",
      [](const std::string& schedule, int ranks, int stages, int micro_batches) {
        return translated([&] { return plan::simulated::actions_json(schedule, ranks, stages, micro_batches); });
      },
      py::arg("schedule"), py::arg("ranks"), py::arg("stages"), py::arg("micro_batches"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace atl::pytorch
