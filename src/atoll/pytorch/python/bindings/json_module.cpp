// SPDX-License-Identifier: Apache-2.0
// Functions whose arguments and results are JSON texts, or names in them.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "atoll/infer/dims.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/profiled.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/json/parse.h"
#include "atoll/plan/layers/json.h"
#include "atoll/plan/operators/forecast.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/plan/simulate/json.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/gil.h"

namespace atl::pytorch {
namespace {

std::string profiled_operators(const std::string& graph, const std::string& robot, const std::string& server) {
  const infer::Graph read = infer::graph_from_json(graph);
  const infer::Profile mine = infer::profile_from_json(robot);
  if (server.empty()) return infer::profiled_json(read, mine, nullptr);
  const infer::Profile its = infer::profile_from_json(server);
  return infer::profiled_json(read, mine, &its);
}

std::string checked_profile(const std::string& text) { return infer::to_json(infer::profile_from_json(text)); }

// `choose_dims` of a graph, and `count` of them.
std::string split_dims(const std::string& graph, int input_tensor, int dim) {
  const infer::Graph parsed = infer::graph_from_json(graph);
  const std::vector<int> dims = infer::choose_dims(parsed, input_tensor, dim);
  const infer::Localities counts = infer::count(parsed, dims);
  return json::Json{{"dims", dims},
                    {"local", counts.local},
                    {"partial", counts.partial},
                    {"global", counts.global},
                    {"constant", counts.constant}}
      .dump();
}

void admit_graph(const std::string& graph) { infer::safety::admit(infer::graph_from_json(graph), {}); }

}  // namespace

void bind_json(py::module_& module) {
  const py::call_guard<ReleaseGil> no_gil;
  module.def("plan_layers", &plan::plan_layers_json, py::arg("request"), no_gil);
  module.def("price_layers", &plan::price_layers_json, py::arg("request"), no_gil);
  module.def("operator_policies", &plan::operator_policies);
  module.def("forecasts", &plan::forecasts);
  module.def("plan_operators", &plan::plan_operators, py::arg("request"), no_gil);
  module.def("simulate", &plan::simulated::simulate_json, py::arg("plan"), no_gil);
  module.def("simulate_trace", &plan::simulated::trace_json, py::arg("plan"), no_gil);
  module.def("pipeline_actions", &plan::simulated::actions_json, py::arg("schedule"), py::arg("ranks"),
             py::arg("stages"), py::arg("micro_batches"), no_gil);
  module.def("check_infer_profile", &checked_profile, py::arg("text"), no_gil);
  module.def("infer_profiled_operators", &profiled_operators, py::arg("graph"), py::arg("robot"),
             py::arg("server") = "", no_gil);
  module.def("infer_dims", &split_dims, py::arg("graph"), py::arg("input_tensor"), py::arg("dim"), no_gil);
  module.def("infer_admit", &admit_graph, py::arg("graph"), no_gil);
  module.def("infer_admitted_operators", &infer::safety::admitted_operators);
}

}  // namespace atl::pytorch
