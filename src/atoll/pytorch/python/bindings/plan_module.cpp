// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "atoll/plan/apportion.h"
#include "atoll/plan/batches/adapter.h"
#include "atoll/plan/batches/membership.h"
#include "atoll/plan/batches/policies.h"
#include "atoll/plan/cost.h"
#include "atoll/plan/hash.h"
#include "atoll/plan/random.h"
#include "atoll/pytorch/python/bindings/modules.h"

namespace atl::pytorch {
namespace {

using plan::Cost;
using plan::Point;
using Pair = std::pair<double, double>;
using Integers = std::vector<std::int64_t>;
using Limits = std::tuple<std::int64_t, std::optional<std::int64_t>, std::int64_t>;

// Uses Python's own json, so that callers may pass what json.dumps accepts.
std::string as_text(const py::object& value) {
  return py::cast<std::string>(py::module_::import("json").attr("dumps")(value, py::arg("allow_nan") = false));
}

py::object from_text(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

// Returns the answer to a request, both as dictionaries.
template <typename Answer>
py::object answered(const py::object& request, Answer answer) {
  const std::string text = as_text(request);
  std::string result;
  {
    const py::gil_scoped_release no_gil;
    result = answer(text).to_json();
  }
  return from_text(result);
}

template <typename Answer>
void def_answer(py::module_& module, const char* name, Answer answer) {
  module.def(
      name, [answer](const py::object& request) { return answered(request, answer); }, py::arg("request"));
}

std::vector<Point> points_of(const std::vector<Pair>& pairs) {
  std::vector<Point> points;
  for (const auto& [batch, seconds] : pairs) points.push_back({batch, seconds});
  return points;
}

// The tensor owns the vector.
at::Tensor as_tensor(Integers values) {
  auto owned = std::make_unique<Integers>(std::move(values));
  Integers& data = *owned;
  auto tensor = at::from_blob(
      data.data(), {static_cast<std::int64_t>(data.size())}, [raw = owned.get()](void*) { delete raw; },
      at::TensorOptions().dtype(at::kLong));
  owned.release();
  return tensor;
}

at::Tensor drawn(const at::Tensor& weights, std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  TORCH_CHECK_VALUE(weights.dim() == 1, "weights have ", weights.dim(), " dimensions: give one weight per index");
  const at::Tensor plain = weights.to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> values(plain.const_data_ptr<double>(), static_cast<std::size_t>(plain.numel()));
  return as_tensor(plan::draw(values, count, seed, epoch));
}

std::uint64_t index_hash(const at::Tensor& values) {
  TORCH_CHECK_VALUE(values.scalar_type() == at::kLong, "indices are ", values.scalar_type(), ": give int64");
  const at::Tensor plain = values.to(at::kCPU).contiguous();
  return plan::hash_of(std::span(plain.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(plain.numel())));
}

Integers apportioned(const std::vector<double>& weights, std::int64_t total, const std::vector<Limits>& limits,
                     const std::vector<std::string>& names) {
  std::vector<plan::Bounds> bounds;
  for (const auto& [least, most, quantum] : limits) {
    bounds.push_back({least, most.value_or(plan::kUnbounded), quantum});
  }
  return plan::apportion(weights, total, bounds, names);
}

void bind_cost(py::module_& module) {
  py::class_<Cost>(module, "Cost", "The seconds of a rank's step as a non-decreasing function of its batch.")
      .def_static("affine", &Cost::affine, py::arg("fixed"), py::arg("per_sample"))
      .def_static("saturating", &Cost::saturating, py::arg("fixed"), py::arg("per_sample"), py::arg("knee"))
      .def_static("staircase", &Cost::staircase, py::arg("step"), py::arg("per_launch"), py::arg("per_sample"))
      .def_static(
          "table", [](const std::vector<Pair>& points) { return Cost::table(points_of(points)); }, py::arg("points"))
      .def_static("from_json", &Cost::from_json, py::arg("text"))
      .def("to_json", &Cost::to_json)
      .def("scaled", &Cost::scaled, py::arg("factor"))
      .def(
          "overlapped",
          [](const Cost& self, double forward_share, const std::vector<Pair>& pairs) {
            std::vector<plan::Bucket> buckets;
            for (const auto& [ready, seconds] : pairs) buckets.push_back({ready, seconds});
            return self.overlapped(forward_share, std::move(buckets));
          },
          py::arg("forward_share"), py::arg("buckets"))
      .def("seconds", &Cost::seconds, py::arg("batch"))
      .def("compute_seconds", &Cost::compute_seconds, py::arg("batch"))
      .def_property_readonly("shape", &Cost::shape)
      .def_property_readonly("factor", &Cost::factor)
      .def(
          "__eq__", [](const Cost& self, const Cost& other) { return self == other; }, py::is_operator())
      .def("__hash__", [](const Cost& self) { return plan::hash_of(self.to_json()); })
      .def("__repr__", [](const Cost& self) { return "Cost(" + self.to_json() + ")"; })
      .def(py::pickle([](const Cost& self) { return self.to_json(); },
                      [](const std::string& text) { return Cost::from_json(text); }));
  module.def(
      "fit_cost",
      [](const std::vector<Pair>& points) {
        const plan::Fit fit = plan::fit(points_of(points));
        return std::pair(fit.cost, fit.error);
      },
      py::arg("points"));
}

void bind_indices(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  module.def(
      "permutation",
      [](std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
        return as_tensor(plan::permutation(size, seed, epoch));
      },
      py::arg("size"), py::arg("seed"), py::arg("epoch"), no_gil);
  module.def("draw", &drawn, py::arg("weights"), py::arg("count"), py::arg("seed"), py::arg("epoch"), no_gil);
  module.def("index_hash", &index_hash, py::arg("values"), no_gil);
}

void bind_policies(py::module_& module) {
  using plan::Request;
  module.def("policies", [] { return std::vector<std::string>(plan::policies().begin(), plan::policies().end()); });
  def_answer(module, "plan_batches", [](const auto& text) { return plan::plan_batches(Request::from_json(text)); });
  def_answer(module, "explain_batches", [](const auto& text) { return plan::explain(Request::from_json(text)); });
  def_answer(module, "advise_membership", [](const auto& text) { return plan::membership_from_json(text); });
  module.def(
      "evaluate_batches",
      [](const py::object& request, const Integers& batches) {
        return answered(request, [&](const auto& text) { return plan::evaluate(Request::from_json(text), batches); });
      },
      py::arg("request"), py::arg("batches"));
}

py::list history_of(const plan::Adapter& adapter) {
  py::list list;
  for (const plan::PlanChange& change : adapter.history())
    list.append(py::dict(py::arg("step") = change.step, py::arg("batches") = change.batches));
  return list;
}

void bind_adapter(py::module_& module) {
  using plan::Adapter;
  py::class_<Adapter>(module, "PlanAdapter", "Keeps a plan up to date from what the ranks measure.")
      .def(py::init([](const py::object& request, const py::object& options) {
             return Adapter(plan::Request::from_json(as_text(request)),
                            plan::AdapterOptions::from_json(as_text(options)));
           }),
           py::arg("request"), py::arg("options") = py::dict())
      .def(
          "observe",
          [](Adapter& self, const py::object& window) {
            return from_text(self.observe(plan::Window::from_json(as_text(window))).to_json());
          },
          py::arg("window"))
      .def_property_readonly("plan", [](const Adapter& self) { return from_text(self.plan().to_json()); })
      .def_property_readonly("version", &Adapter::version)
      .def_property_readonly("history", &history_of)
      .def("freeze", &Adapter::freeze, py::arg("frozen") = true)
      .def("state_dict", [](const Adapter& self) { return from_text(self.save()); })
      .def(
          "load_state_dict", [](Adapter& self, const py::object& state) { self.restore(as_text(state)); },
          py::arg("state"));
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_cost(module);
  bind_indices(module);
  bind_policies(module);
  bind_adapter(module);
  module.def("apportion", &apportioned, py::arg("weights"), py::arg("total"), py::arg("bounds"),
             py::arg("names") = std::vector<std::string>());
}

}  // namespace atl::pytorch
