// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/infer_safety_module.h"

#include <torch/csrc/utils/pybind.h>

#include "atoll/infer/safety/admit_json.h"
#include "atoll/infer/safety/sandbox.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

void bind_infer_safety(py::module_& module) {
  module.def(
      "infer_admit",
      [](const std::string& graph, const std::string& limits) {
        translated([&] { infer::safety::admit_json(graph, limits); });
      },
      py::arg("graph"), py::arg("limits") = "{}", py::call_guard<ReleaseGil>());
  module.def(
      "infer_admit_node",
      [](const std::string& graph, std::int64_t node, const std::string& call, const std::string& limits) {
        return translated([&] { return infer::safety::admit_call_json(graph, node, call, limits); });
      },
      py::arg("graph"), py::arg("node"), py::arg("call") = "{}", py::arg("limits") = "{}",
      py::call_guard<ReleaseGil>());
  module.def("infer_admitted_operators", &infer::safety::admitted_operators);
  module.def(
      "infer_enter_sandbox",
      [](std::int64_t memory_bytes, int descriptors) {
        translated([&] { infer::safety::enter_sandbox({.memory_bytes = memory_bytes, .descriptors = descriptors}); });
      },
      py::arg("memory_bytes"), py::arg("descriptors") = 64);
}

}  // namespace atl::pytorch
