// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <string>

#include "atoll/infer/serve/server.h"
#include "atoll/logging/spdlog_sink.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/gil.h"
#include "atoll/pytorch/python/process/interrupts.h"
#include "atoll/pytorch/python/seconds.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::pytorch {
namespace {

using infer::Server;
using infer::ServerCounts;
using infer::ServerOptions;

template <typename Value>
void read(const py::dict& from, const char* name, Value& to) {
  if (from.contains(name)) to = from[name].cast<Value>();
}

void read_seconds(const py::dict& from, const char* name, std::chrono::milliseconds& to) {
  if (from.contains(name)) to = milliseconds_of(from[name].cast<double>());
}

ServerOptions options_of(const py::dict& given) {
  ServerOptions options;
  read(given, "host", options.host);
  read(given, "port", options.port);
  read(given, "cache_folder", options.cache_folder);
  read(given, "cache_bytes", options.cache_bytes);
  read(given, "worker_program", options.worker_program);
  read(given, "device", options.device);
  read(given, "threads", options.threads);
  read(given, "turns", options.turns);
  read(given, "most_connections", options.most_connections);
  read(given, "most_workers", options.most_workers);
  read(given, "worker_memory_bytes", options.worker_memory_bytes);
  read(given, "most_model_bytes", options.most_model_bytes);
  read_seconds(given, "compute_limit", options.compute_limit);
  read_seconds(given, "start_limit", options.start_limit);
  read_seconds(given, "hello_limit", options.hello_limit);
  if (given.contains("key_file")) {
    options.credentials = transport::Credentials::of_key_file(given["key_file"].cast<std::string>());
  } else if (given.contains("certificate_files")) {
    const auto files = given["certificate_files"].cast<std::array<std::string, 3>>();
    options.credentials = transport::Credentials::of_certificates(files[0], files[1], files[2]);
  }
  return options;
}

py::dict dict_of(const ServerCounts& counts) {
  using namespace py::literals;  // NOLINT(google-build-using-namespace)
  return py::dict("connections"_a = counts.connections, "workers"_a = counts.workers,
                  "waiting_models"_a = counts.waiting_models, "waiting_inferences"_a = counts.waiting_inferences,
                  "accepted"_a = counts.accepted, "refused"_a = counts.refused, "uploads"_a = counts.uploads,
                  "inferences"_a = counts.inferences, "failed"_a = counts.failed, "cancelled"_a = counts.cancelled,
                  "workers_lost"_a = counts.workers_lost, "bytes_in"_a = counts.bytes_in,
                  "bytes_out"_a = counts.bytes_out, "compute_seconds"_a = counts.compute_seconds,
                  "waited_seconds"_a = counts.waited_seconds);
}

}  // namespace

void bind_serve(py::module_& module) {
  py::class_<Server, std::shared_ptr<Server>>(module, "InferServer")
      .def(py::init([](const py::dict& given) {
             logging::install_spdlog_sink();
             const ServerOptions options = options_of(given);
             const ReleaseGil released;
             // Its destructor waits for its threads, which may be writing to a disk.
             return std::shared_ptr<Server>(new Server(options), [](Server* server) {
               const ReleaseGil others_may_need_it;
               delete server;
             });
           }),
           py::arg("options"))
      .def_property_readonly("address", &Server::address)
      .def("counts",
           [](const Server& server) {
             ServerCounts counts;
             {
               const ReleaseGil released;
               counts = server.counts();
             }
             return dict_of(counts);
           })
      .def(
          "drain",
          [](Server& server, double seconds) {
            return server.drain(Deadline::after(milliseconds_of(seconds)), check_signals);
          },
          py::arg("seconds"), py::call_guard<ReleaseGil>());
  module.def(
      "make_key_file", [](const std::string& path) { transport::make_key_file(path); }, py::arg("path"));
}

}  // namespace atl::pytorch
