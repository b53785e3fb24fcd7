// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/infer_safety_module.h"

#include <torch/csrc/utils/pybind.h>

#include "atoll/infer/safety/admit_json.h"
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
  module.def("infer_admitted_operators", &infer::safety::admitted_operators);
}

}  // namespace atl::pytorch
