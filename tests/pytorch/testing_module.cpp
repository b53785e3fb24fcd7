// SPDX-License-Identifier: Apache-2.0
// The module _testing: what the tests in Python call and the package does not. It has its own copy of what it needs of
// the glue, and shares libatoll with atoll._C.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/infer/graph_json.h"
#include "atoll/infer/plan.h"
#include "atoll/infer/run/costs.h"
#include "atoll/infer/safety/sandbox.h"
#include "atoll/json/fields.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/pytorch/aten/arena.h"
#include "atoll/pytorch/aten/ivalues.h"
#include "atoll/pytorch/aten/operator_runner.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/host_bytes.h"
#include "tests/pytorch/rules_json.h"
#include "tests/support/loopback.h"

namespace atl::pytorch {
namespace {

using infer::Inference;
using infer::LoadedModel;
using infer::Operators;
using infer::Plan;
using infer::Program;
using plan::Side;

std::map<std::string, infer::HostBytes> weight_bytes(const std::map<std::string, at::Tensor>& weights) {
  std::map<std::string, infer::HostBytes> bytes;
  for (const auto& [name, tensor] : weights) bytes[name] = host_bytes_of(tensor);
  return bytes;
}

// A model that both sides of a division have, in one process.
class InferModel {
 public:
  InferModel(const std::string& graph, const std::map<std::string, at::Tensor>& weights, const std::string& device)
      : robot_(infer::graph_from_json(graph), weight_bytes(weights), make_operator_runner(device)),
        server_(robot_.graph(), weight_bytes(weights), make_operator_runner(device)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    const Operators operators = infer::operators_of(graph(), -1, -1);
    Inference inference(robot_, operators);
    set_inputs(inference, inputs);
    inference.run(infer::rest_of(graph(), operators, inference.held()), infer::no_exchange());
    return outputs(inference);
  }

  std::vector<at::Tensor> run_divided(const std::vector<at::Tensor>& inputs, const std::string& division,
                                      std::optional<std::size_t> stop_after) {
    const Plan shares = infer::test::division_from(division);
    const Operators operators = infer::operators_of(graph(), shares.input_tensor, shares.dim);
    Program program = infer::program_of(graph(), operators, shares, Side::kRobot);
    Inference inference(robot_, operators);
    set_inputs(inference, inputs);
    infer::test::Loopback link;
    std::exception_ptr server_failure;
    std::thread server([&] {
      try {
        Inference(server_, operators).run(infer::program_of(graph(), operators, shares, Side::kServer), link.server());
      } catch (...) {
        server_failure = std::current_exception();
        link.close(server_failure);
      }
    });
    std::exception_ptr failure;
    try {
      if (stop_after && *stop_after < program.steps.size()) program.steps.resize(*stop_after);
      inference.run(program, link.robot());
    } catch (...) {
      failure = std::current_exception();
    }
    link.close(std::make_exception_ptr(Error(ErrorKind::kAborted, "the robot has stopped sending")));
    server.join();
    if (!failure && !stop_after) failure = server_failure;
    if (failure) std::rethrow_exception(failure);
    if (stop_after) inference.run(infer::rest_of(graph(), operators, inference.held()), infer::no_exchange());
    return outputs(inference);
  }

  std::size_t steps(const std::string& division) const {
    const Plan shares = infer::test::division_from(division);
    const Operators operators = infer::operators_of(graph(), shares.input_tensor, shares.dim);
    return infer::program_of(graph(), operators, shares, Side::kRobot).steps.size();
  }

 private:
  const infer::Graph& graph() const { return robot_.graph(); }

  void set_inputs(Inference& inference, const std::vector<at::Tensor>& inputs) {
    if (inputs.size() != graph().inputs.size()) {
      throw Error(ErrorKind::kInvalidArgument,
                  std::to_string(inputs.size()) + " inputs for a graph with " + std::to_string(graph().inputs.size()));
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const infer::Tensor& type = graph().tensors[static_cast<std::size_t>(graph().inputs[i])];
      if (type.shape != inputs[i].sizes().vec() || type.dtype != dtype_of(inputs[i].scalar_type())) {
        throw Error(ErrorKind::kInvalidArgument,
                    "input " + std::to_string(i) + " must have the shape and type of the graph's");
      }
      inference.set_input(graph().inputs[i], robot_.runner().from_host(type, host_bytes_of(inputs[i])));
    }
  }

  std::vector<at::Tensor> outputs(Inference& inference) {
    std::vector<at::Tensor> outputs;
    for (const infer::Argument& output : graph().outputs) {
      const auto* tensor = std::get_if<infer::TensorId>(&output);
      if (tensor == nullptr) continue;
      const infer::Tensor& type = graph().tensors[static_cast<std::size_t>(tensor->id)];
      const infer::HostBytes bytes = robot_.runner().to_host(inference.whole(tensor->id));
      outputs.push_back(at::empty(type.shape, at::dtype(scalar_type_of(type.dtype))));
      if (!bytes.bytes.empty()) std::memcpy(outputs.back().mutable_data_ptr(), bytes.bytes.data(), bytes.bytes.size());
    }
    return outputs;
  }

  LoadedModel robot_;
  LoadedModel server_;
};

infer::NodeCosts profile_from(json::Fields& options, const char* whose, const infer::Graph& graph, double factor) {
  infer::NodeCosts profile;
  if (options.has(whose)) {
    for (const auto& [fixed, per_row] : options.pairs(whose)) profile.push_back({fixed, per_row});
    return profile;
  }
  for (const infer::Node& node : graph.nodes) {
    double bytes = 0;
    for (const int tensor : node.outputs) {
      bytes += static_cast<double>(graph.tensors[static_cast<std::size_t>(tensor)].bytes());
    }
    profile.push_back({factor * 1e-6, factor * 1e-9 * bytes});
  }
  return profile;
}

// Missing costs grow with the bytes that a node makes; the server is ten times as fast.
std::string plan_division(const std::string& text, int input, int dim, const std::string& policy,
                          const std::string& options_text) {
  const infer::Graph graph = infer::graph_from_json(text);
  const Operators operators = infer::operators_of(graph, input, dim);
  const json::Json parsed = json::parse(options_text, "the options");
  json::Fields options(parsed, "the options");
  const plan::OperatorGraph lowered = infer::operator_graph(graph, operators, profile_from(options, "robot", graph, 10),
                                                            profile_from(options, "server", graph, 1));
  plan::check(lowered);
  const plan::LinkCost link{options.number("up", 1e7), options.number("down", 1e7), options.number("latency", 1e-3),
                            options.boolean("half_duplex", false)};
  plan::OperatorOptions asked;
  asked.deadline = options.number("deadline", asked.deadline);
  asked.chunks = static_cast<int>(options.integer("chunks", asked.chunks));
  asked.seed = options.unsigned_integer("seed", asked.seed);
  asked.is_literal = options.boolean("literal", asked.is_literal);
  asked.evaluations = options.integer("evaluations", asked.evaluations);
  options.done();
  const plan::OperatorPlan made = plan::make_plan(policy, lowered, link, {}, asked);
  return infer::test::division_json({input, dim, made.shares, made.chunks});
}

using Released = py::call_guard<ReleaseGil>;

void bind_regions(py::module_& module) {
  module.def(
      "infer_split",
      [](const std::string& graph, std::int64_t node, int output_dim) {
        return translated([&] { return infer::test::split_json(graph, node, output_dim); });
      },
      py::arg("graph"), py::arg("node"), py::arg("output_dim"), Released());
  module.def(
      "infer_slice",
      [](const std::string& graph, std::int64_t node, int output_dim, std::int64_t begin, std::int64_t end) {
        return translated([&] { return infer::test::slice_json(graph, node, output_dim, {begin, end}); });
      },
      py::arg("graph"), py::arg("node"), py::arg("output_dim"), py::arg("begin"), py::arg("end"), Released());
}

void bind_safety(py::module_& module) {
  module.def(
      "infer_admit_node",
      [](const std::string& graph, std::int64_t node, const std::string& call, const std::string& limits) {
        return translated([&] { return infer::test::admit_call_json(graph, node, call, limits); });
      },
      py::arg("graph"), py::arg("node"), py::arg("call") = "{}", py::arg("limits") = "{}", Released());
  module.def(
      "infer_enter_sandbox",
      [](std::int64_t memory_bytes, int descriptors) {
        translated([&] { infer::safety::enter_sandbox({.memory_bytes = memory_bytes, .descriptors = descriptors}); });
      },
      py::arg("memory_bytes"), py::arg("descriptors") = 64);
}

void bind_model(py::module_& module) {
  py::class_<InferModel>(module, "InferModel")
      .def(py::init([](const std::string& graph, const std::map<std::string, at::Tensor>& weights,
                       const std::string& device) {
             return translated([&] { return std::make_unique<InferModel>(graph, weights, device); });
           }),
           py::arg("graph"), py::arg("weights"), py::arg("device") = "cpu", Released())
      .def(
          "run",
          [](InferModel& model, const std::vector<at::Tensor>& inputs) {
            return translated([&] { return model.run(inputs); });
          },
          py::arg("inputs"), Released())
      .def(
          "run_divided",
          [](InferModel& model, const std::vector<at::Tensor>& inputs, const std::string& division) {
            return translated([&] { return model.run_divided(inputs, division, std::nullopt); });
          },
          py::arg("inputs"), py::arg("division"), Released())
      .def(
          "cut_short",
          [](InferModel& model, const std::vector<at::Tensor>& inputs, const std::string& division,
             std::size_t after_steps) {
            return translated([&] { return model.run_divided(inputs, division, after_steps); });
          },
          py::arg("inputs"), py::arg("division"), py::arg("after_steps"), Released())
      .def(
          "steps",
          [](const InferModel& model, const std::string& division) {
            return translated([&] { return model.steps(division); });
          },
          py::arg("division"), Released());
  module.def("infer_arena_bytes", &arena_bytes);
  module.def("infer_empty_arena", &empty_arena, Released());
  module.def(
      "plan_division",
      [](const std::string& graph, int input, int dim, const std::string& policy, const std::string& options) {
        return translated([&] { return plan_division(graph, input, dim, policy, options); });
      },
      py::arg("graph"), py::arg("input"), py::arg("dim"), py::arg("policy"), py::arg("options") = "{}", Released());
}

}  // namespace
}  // namespace atl::pytorch

PYBIND11_MODULE(_testing, module) {
  py::module_::import("torch");  // registers the class of tensors
  atl::pytorch::bind_regions(module);
  atl::pytorch::bind_safety(module);
  atl::pytorch::bind_model(module);
}
