// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/infer_module.h"

#include <torch/csrc/utils/pybind.h>

#include "atoll/infer/regions_json.h"
#include "atoll/pytorch/python/bindings/infer_safety_module.h"
#include "atoll/pytorch/python/bindings/profile_module.h"
#include "atoll/pytorch/python/bindings/serve_module.h"
#include "atoll/pytorch/python/bindings/session_module.h"
#include "atoll/pytorch/python/bindings/watch_module.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {

void bind_infer(py::module_& module) {
  module.def(
      "infer_dims",
      [](const std::string& graph, int input_tensor, int dim) {
        return translated([&] { return infer::dims_json(graph, input_tensor, dim); });
      },
      py::arg("graph"), py::arg("input_tensor"), py::arg("dim"), py::call_guard<ReleaseGil>());
  bind_infer_safety(module);
  bind_serve(module);
  bind_session(module);
  bind_watch(module);
  bind_profile(module);
}

}  // namespace atl::pytorch
