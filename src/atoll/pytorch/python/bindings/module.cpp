// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "atoll/collectives/schedule/schedule.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/process/arena.h"
#include "atoll/pytorch/python/process/device_threads.h"
#include "atoll/pytorch/python/process/direct_device.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {
namespace {

using Options = BackendAtoll::Options;
using ReleasesGil = py::call_guard<py::gil_scoped_release>;

py::dict time_split(const BackendAtoll& backend) {
  const auto split = [&] {
    const py::gil_scoped_release others_may_need_it;  // the group may end here, if another thread closes it
    return backend.group()->time_split();
  }();
  py::dict result;
  result["total_s"] = static_cast<double>(split.total_ns) * 1e-9;
  result["bridge_s"] = static_cast<double>(split.bridge_ns) * 1e-9;
  result["inside_s"] = static_cast<double>(split.total_ns - split.bridge_ns) * 1e-9;
  result["operations"] = split.operations;
  result["bytes_inside"] = split.bytes_inside;
  result["bytes_bridge"] = split.bytes_bridge;
  result["bytes_lent"] = split.bytes_lent;
  return result;
}

std::vector<std::tuple<std::string, std::vector<int>>> islands(const BackendAtoll& backend) {
  const auto group = backend.group();
  const auto& topology = group->topology();
  std::vector<std::tuple<std::string, std::vector<int>>> list;
  for (std::size_t i = 0; i < topology.islands.size(); ++i) list.emplace_back(topology.labels[i], topology.islands[i]);
  return list;
}

// `counts`: elements per segment, as schedule.h describes them for `operation`.
std::string schedule(const BackendAtoll& backend, const std::string& operation, at::ScalarType dtype, int root,
                     const std::vector<std::uint64_t>& counts, const std::vector<std::uint64_t>& receive_counts) {
  collectives::Shape shape;
  bool known = false;
  for (int i = 0; i <= static_cast<int>(collectives::Operation::kBarrier); ++i) {
    shape.operation = static_cast<collectives::Operation>(i);
    if ((known = operation == collectives::to_string(shape.operation))) break;
  }
  TORCH_CHECK_VALUE(known, "\"", operation, "\" is not a collective operation");
  shape.dtype = wire_type(dtype);
  shape.root = root;
  shape.counts = counts;
  shape.receive_counts = receive_counts;
  const auto built = backend.group()->schedule(shape);
  return "algorithm: " + built->algorithm + "\n" + collectives::print_schedule(*built);
}

// One library per island, one device per rank.
std::vector<std::string> libraries(const BackendAtoll& backend) { return backend.group()->topology().libraries; }
std::vector<std::string> devices(const BackendAtoll& backend) { return backend.group()->topology().devices; }

void bind_places(py::module_& module) {
  py::class_<Place>(module, "Place",
                    "The device that a rank computes on, and the library with which its island may reduce there.")
      .def(py::init<std::string, int, std::string, std::string, bool, bool, std::set<std::string>, std::string>(),
           py::arg("device"), py::arg("index"), py::arg("library"), py::arg("stack"), py::arg("one_host"),
           py::arg("named"), py::arg("reductions"), py::arg("problem"));
  module.def(
      "set_library_maker",
      [](py::object maker) {
        set_library_maker([made_by = maker.release()](const LibraryRequest& request) {
          const py::gil_scoped_acquire gil;
          return py::cast<BackendPtr>(made_by(request.library, request.device, request.store, request.rank,
                                              request.size, request.timeout, request.group_name, request.global_ranks));
        });
      },
      py::arg("maker"), "Sets how communicators of vendors' libraries are made; called once, before the first group.");
}

void bind_arena(py::module_& module) {
  module.def(
      "empty",
      [](const std::vector<std::int64_t>& sizes, at::ScalarType dtype) { return empty_in_arena(sizes, dtype); },
      py::arg("sizes"), py::arg("dtype"), ReleasesGil(),
      "Returns an uninitialised CPU tensor in this process's arena.");
  module.def(
      "arena_bytes",
      [] {
        const auto arena = process_arena();
        return arena ? std::pair(arena->allocated_bytes(), arena->mapped_bytes())
                     : std::pair<std::size_t, std::size_t>();
      },
      "Returns the bytes of this process's arena that are in use, and those taken from the system.");
  module.def(
      "set_host_registrar",
      [](const std::string& device, std::uintptr_t add, std::uintptr_t remove, std::uintptr_t clear_error) {
        // NOLINTBEGIN(performance-no-int-to-ptr): functions travel through Python as numbers
        set_host_registrar(c10::Device(device).type(),
                           {reinterpret_cast<int (*)(void*, std::size_t, unsigned)>(add),
                            reinterpret_cast<int (*)(void*)>(remove), reinterpret_cast<int (*)()>(clear_error)});
        // NOLINTEND(performance-no-int-to-ptr)
      },
      py::arg("device"), py::arg("add"), py::arg("remove"), py::arg("clear_error"),
      "Sets the addresses of the C functions that register host memory with the runtime of a type of device, that undo "
      "it, and that take back an error (0: none).");
}

void bind_device_threads(py::module_& module) {
  module.def(
      "set_device_threads",
      [](const std::string& device, int index, std::uintptr_t exchange_capture_mode) {
        const c10::Device place(c10::Device(device).type(), static_cast<c10::DeviceIndex>(index));
        // NOLINTNEXTLINE(performance-no-int-to-ptr): functions travel through Python as numbers
        set_device_threads({place, reinterpret_cast<int (*)(int*)>(exchange_capture_mode)});
      },
      py::arg("device"), py::arg("index"), py::arg("exchange_capture_mode"),
      "Sets the device that threads of Atoll use from now on, and the address of its runtime's C function like CUDA's "
      "cudaThreadExchangeStreamCaptureMode (0: none).");
}

void bind_network_memory(py::module_& module) {
  module.def(
      "set_network_memory",
      [](const std::string& device, const std::string& kind, std::uintptr_t host_view) {
        static const std::map<std::string, transport::MemoryKind> kinds{{"host", transport::MemoryKind::kHost},
                                                                        {"cuda", transport::MemoryKind::kCuda},
                                                                        {"rocm", transport::MemoryKind::kRocm}};
        // NOLINTNEXTLINE(performance-no-int-to-ptr): functions travel through Python as numbers
        set_network_memory(c10::Device(device).type(),
                           {kinds.at(kind), reinterpret_cast<void* (*)(const void*)>(host_view)});
      },
      py::arg("device"), py::arg("kind"), py::arg("host_view") = 0,
      "Sets how networks access the memory of a type of device: host, cuda or rocm; for host, with the address of the "
      "C function that returns the host address.");
}

void bind_interrupt(py::module_& module) {
  module.def(
      "set_interrupt",
      [](py::object interrupt, py::object take_back, std::uint64_t main_thread) {
        set_interrupt(
            [raise = interrupt.release()](std::thread::native_handle_type thread, const Error& error) {
              if (!Py_IsInitialized()) return;
              const py::gil_scoped_acquire gil;
              raise(static_cast<std::uint64_t>(thread), error.kind() == ErrorKind::kPeerLost, error.what());
            },
            [undo = take_back.release()](std::thread::native_handle_type thread) {
              if (!Py_IsInitialized()) return;
              const py::gil_scoped_acquire gil;
              undo(static_cast<std::uint64_t>(thread));
            },
            static_cast<std::thread::native_handle_type>(main_thread));
      },
      py::arg("interrupt"), py::arg("take_back"), py::arg("main_thread"),
      "Sets how an error is raised in a thread that relies on values which turned out wrong, and how that is undone "
      "before the thread has seen it; called once, before the first group.");
}

PyObject* calls_entered(PyObject* /*module*/, PyObject* /*none*/) {
  return PyLong_FromUnsignedLongLong(BackendAtoll::entered_on_this_thread());
}

void bind_backend(py::module_& module) {
  // Every call of torch.distributed calls it, so it is a plain function of CPython, without pybind11's dispatch.
  static PyMethodDef method{"calls_entered", calls_entered, METH_NOARGS,
                            "calls_entered() -> int\n\nThe number of this thread's calls that have reached a group."};
  module.attr("calls_entered") = py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr));
  py::class_<BackendAtoll, c10::intrusive_ptr<BackendAtoll>, c10d::Backend> backend(
      module, "Backend", "A process group of torch.distributed over Atoll.");
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(backend, "Options",
                                                                           "Options of the atoll backend.")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("group_desc", &Options::group_desc)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def(
          "__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); },
          py::arg("memo"));

  backend
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       const c10::intrusive_ptr<Options>& options, int global_rank, const Place& place) {
             return c10::make_intrusive<BackendAtoll>(store, rank, size, options, global_rank, place);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), py::arg("global_rank"),
           py::arg("place"), ReleasesGil())
      .def_property_readonly("options", &BackendAtoll::getBackendOptions)
      .def("islands", &islands, ReleasesGil())
      .def("libraries", &libraries, ReleasesGil())
      .def("devices", &devices, ReleasesGil())
      .def("device", &BackendAtoll::device_type)
      .def_static("stop_tensor_alloc", &BackendAtoll::stop_tensor_alloc)
      .def("refuse", &BackendAtoll::refuse, py::arg("why"), ReleasesGil())
      .def("refuse_message", &BackendAtoll::refuse_message, py::arg("peer"), py::arg("tag"), py::arg("sends"),
           py::arg("why"), ReleasesGil())
      .def("time_split", &time_split)
      .def(
          "perform_nocolor_split", [](const BackendAtoll&, const py::object&) {}, py::arg("device"),
          "Does nothing, for ranks outside a group that is split off. Before torch 2.13 Backend has no such method.")
      .def("staging_seconds", &BackendAtoll::staging_seconds, ReleasesGil())
      .def(
          "sent_bytes", [](const BackendAtoll& self) { return self.group()->sent_bytes(); }, ReleasesGil())
      .def(
          "direct_messages", [](const BackendAtoll& self) { return self.group()->direct_messages(); }, ReleasesGil())
      .def(
          "links", [](const BackendAtoll& self) { return self.group()->links(); }, ReleasesGil())
      .def(
          "dump_json", [](const BackendAtoll& self) { return self.group()->dump_json(); }, ReleasesGil())
      .def("schedule", &schedule, py::arg("operation"), py::arg("dtype"), py::arg("root"), py::arg("counts"),
           py::arg("receive_counts"), ReleasesGil());
}

}  // namespace
}  // namespace atl::pytorch

PYBIND11_MODULE(_C, module) {
  try {
    atl::logging::install_spdlog_sink();
  } catch (const atl::Error&) {  // an unknown level; groups, sessions and servers refuse it when they are made
  }
  py::module_::import("torch");  // registers the base classes
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const atl::Error&) {
      torch::translate_exception_to_python(atl::pytorch::as_torch(thrown));
    }
  });
  atl::pytorch::bind_places(module);
  atl::pytorch::bind_arena(module);
  atl::pytorch::bind_device_threads(module);
  atl::pytorch::bind_network_memory(module);
  atl::pytorch::bind_interrupt(module);
  atl::pytorch::bind_backend(module);
  atl::pytorch::bind_trial(module);
  atl::pytorch::bind_blocks(module);
  atl::pytorch::bind_plan(module);
  atl::pytorch::bind_json(module);
  atl::pytorch::bind_profile(module);
  atl::pytorch::bind_serve(module);
  atl::pytorch::bind_session(module);
  atl::pytorch::bind_watch(module);
  atl::pytorch::bind_redis(module);
  module.def("shut_down_all", &atl::pytorch::BackendAtoll::shut_down_all, atl::pytorch::ReleasesGil());
}
