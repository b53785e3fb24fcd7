// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/process_group.h"
#include "atoll/sim/pytorch/runtime.h"

namespace {

using namespace atl::sim;

py::tuple ids_of(const c10::Stream& stream) {
  return py::make_tuple(stream.id(), static_cast<int>(stream.device_index()), static_cast<int>(stream.device_type()));
}

py::object default_generator_of(int index) {
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(static_cast<c10::DeviceIndex>(index))));
}

py::dict punctuality(int index) {
  const Punctuality& counts = device(static_cast<c10::DeviceIndex>(index)).punctuality();
  py::dict result;
  result["tasks"] = counts.tasks.load();
  result["late"] = counts.late.load();
  return result;
}

Rates rates_of(const std::tuple<double, double, double>& given) {
  return {std::get<0>(given), std::get<1>(given), std::get<2>(given)};
}

void set_kind_of(const std::tuple<double, double, double>& usual,
                 const std::map<std::string, std::tuple<double, double, double>>& operators, double launch_s,
                 double jitter, double pageable, double warm_after_s, double warm_speed) {
  DeviceKind kind{rates_of(usual), {}, launch_s, jitter, pageable, warm_after_s, warm_speed};
  for (const auto& [name, rates] : operators) kind.operators.emplace(name, rates_of(rates));
  set_kind(std::move(kind));
}

bool has_autograd_threads() {
  std::error_code gone;  // a thread may end while it is examined
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("pt_autograd_")) return true;
  }
  return false;
}

/// Ends the threads on which PyTorch's autograd serves devices and waits for at most two seconds until they are gone.
/// They release Python objects of a backward pass only after its caller has continued, and a thread that does so while
/// the interpreter is finalized ends the process ("terminate called without an active exception"). No backward pass may
/// follow. The caller must not hold the GIL.
void end_autograd_threads() {
  if (!has_autograd_threads()) return;
  torch::autograd::Engine::get_default_engine().stop();
  // stop() waits until they have left their loops, but each takes the GIL once more before it ends.
  const auto limit = atl::Deadline::after(std::chrono::seconds(2));
  while (has_autograd_threads() && !limit.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void bind_process_group(py::module_& module) {
  py::class_<ProcessGroupSimccl, c10::intrusive_ptr<ProcessGroupSimccl>, c10d::Backend>(
      module, "ProcessGroupSimccl", "A process group of torch.distributed over simulated devices of one host.")
      .def(py::init(
               [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
                 return c10::make_intrusive<ProcessGroupSimccl>(store, rank, size, timeout);
               }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace

PYBIND11_MODULE(_sim, module) {
  py::module_::import("torch");
  module.doc() = "A simulated accelerator; use it through atoll.sim.";
  bind_process_group(module);
  module.def(
      "host_address_function", [] { return reinterpret_cast<std::uintptr_t>(&host_address); },
      "The address of a C function that returns the host address of a byte of device memory.");
  module.def(
      "host_registrar",
      [] {
        return std::pair(reinterpret_cast<std::uintptr_t>(&register_host_memory),
                         reinterpret_cast<std::uintptr_t>(&unregister_host_memory));
      },
      "The addresses of the C functions that make host memory count as pinned, and that undo it.");
  module.def("set_kind", &set_kind_of, py::arg("usual"), py::arg("operators"), py::arg("launch_s"), py::arg("jitter"),
             py::arg("pageable"), py::arg("warm_after_s"), py::arg("warm_speed"),
             "Sets the kind of devices used from now on; rates are flop/s, bytes/s, and the seconds of work that just "
             "fills one.");
  module.def("device_count", [] { return static_cast<int>(device_count()); });
  module.def("current_device", [] { return static_cast<int>(current_device()); });
  module.def(
      "set_device", [](int index) { set_current_device(static_cast<c10::DeviceIndex>(index)); }, py::arg("index"));
  module.def("is_initialized", &is_initialized);
  module.def("used_devices", &used_devices);
  module.def(
      "synchronize", [](int index) { device(static_cast<c10::DeviceIndex>(index)).synchronize(); },
      py::arg("index") = -1, py::call_guard<py::gil_scoped_release>());
  module.def(
      "current_stream", [](int index) { return ids_of(current_stream(static_cast<c10::DeviceIndex>(index))); },
      py::arg("index") = -1);
  module.def(
      "set_stream",
      [](std::int64_t id, int index) {
        return ids_of(set_current_stream(as_stream(static_cast<c10::DeviceIndex>(index), id)));
      },
      py::arg("id"), py::arg("index"));
  module.def("pretend_capturing", &pretend_capturing, py::arg("on"),
             "Makes the calling thread act as if its streams were being captured into a graph; at the end, raises "
             "RuntimeError if another thread has ended the capture.");
  module.def(
      "capture_mode_function", [] { return reinterpret_cast<std::uintptr_t>(&exchange_capture_mode); },
      "The address of a C function like CUDA's cudaThreadExchangeStreamCaptureMode.");
  module.def("pretend_failed", &pretend_failed, py::arg("threads"),
             "Makes events and works throw on threads whose names begin with this, as if the device had failed. None: "
             "on none.");
  module.def("end_autograd_threads", &end_autograd_threads, py::call_guard<py::gil_scoped_release>());
  module.def("default_generator", &default_generator_of, py::arg("index") = -1);
  module.def(
      "punctuality", &punctuality, py::arg("index") = -1,
      "The number of tasks with a modelled time on device `index`, and how many of them ended later than modelled.");
  module.def(
      "memory",
      [](int index) {
        const MemoryStats stats = device(static_cast<c10::DeviceIndex>(index)).memory().stats();
        return py::make_tuple(stats.allocated, stats.peak, stats.held, stats.capacity);
      },
      py::arg("index") = -1, "Bytes in use, their peak, bytes that cannot be allocated yet, and the device's size.");
  module.def(
      "reset_peak_memory", [](int index) { device(static_cast<c10::DeviceIndex>(index)).memory().reset_peak(); },
      py::arg("index") = -1);
}
