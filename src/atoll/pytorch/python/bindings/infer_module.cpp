// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/infer_module.h"

#include <torch/csrc/utils/pybind.h>

#include "atoll/infer/dims.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/json/parse.h"
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
        return translated([&] {
          const infer::Graph parsed = infer::graph_from_json(graph);
          const std::vector<int> dims = infer::choose_dims(parsed, input_tensor, dim);
          const infer::Localities counts = infer::count(parsed, dims);
          return json::Json{{"dims", dims},
                            {"local", counts.local},
                            {"partial", counts.partial},
                            {"global", counts.global},
                            {"constant", counts.constant}}
              .dump();
        });
      },
      py::arg("graph"), py::arg("input_tensor"), py::arg("dim"), py::call_guard<ReleaseGil>());
  module.def(
      "infer_admit",
      [](const std::string& graph) {
        translated([&] { infer::safety::admit(infer::graph_from_json(graph), {}); });
      },
      py::arg("graph"), py::call_guard<ReleaseGil>());
  module.def("infer_admitted_operators", &infer::safety::admitted_operators);
  bind_serve(module);
  bind_session(module);
  bind_watch(module);
  bind_profile(module);
}

}  // namespace atl::pytorch
