// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/infer_safety_module.h"

#include <torch/csrc/utils/pybind.h>

#include "atoll/infer/graph_json.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

void bind_infer_safety(py::module_& module) {
  module.def(
      "infer_admit",
      [](const std::string& graph) {
        translated([&] { infer::safety::admit(infer::graph_from_json(graph), {}); });
      },
      py::arg("graph"), py::call_guard<ReleaseGil>());
  module.def("infer_admitted_operators", &infer::safety::admitted_operators);
}

}  // namespace atl::pytorch
