// SPDX-License-Identifier: Apache-2.0
// Messages directly between the memory of tensors, independent of those of a group, to compare this path with rings of
// chunks. Tensors must be contiguous and no device may be working on them. Both ends agree on message numbers, each
// used by one message at a time. All functions throw Error(kInvalidArgument) if such a message is not possible.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/bindings/modules.h"
#include "atoll/pytorch/python/process/direct_device.h"

namespace atl::pytorch {
namespace {

struct Route {
  std::shared_ptr<collectives::Group> group;  // keeps the port
  transport::DirectPort* port;
  transport::DirectBuffer buffer;
};

Route route_of(const BackendAtoll& backend, int peer, const at::Tensor& tensor) {
  const std::string what = "a direct message to or from rank " + std::to_string(peer);
  auto group = backend.group();
  auto* const port = group->direct_port(peer, std::numeric_limits<std::uint64_t>::max());
  if (port == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                what + ": no link over UCX is open there; pass a message first, with ATOLL_TRANSPORT=ucx");
  }
  const auto buffer = network_buffer(tensor);
  if (!buffer || !port->reaches(buffer->kind)) {
    throw Error(ErrorKind::kInvalidArgument,
                what + ": UCX does not know memory of " + tensor.device().str() + " here; use a tensor on the CPU");
  }
  return {std::move(group), port, *buffer};
}

void remember(const BackendAtoll& backend, int peer, const at::Tensor& tensor) {
  const Route route = route_of(backend, peer, tensor);
  route.port->remember(route.buffer);
}

void forget(const BackendAtoll& backend, int peer, const at::Tensor& tensor) {
  const Route route = route_of(backend, peer, tensor);
  route.port->forget(route.buffer);
}

// Throws what the link throws, and Error(kTimeout).
void pass(const BackendAtoll& backend, int peer, std::uint64_t number, const at::Tensor& tensor, bool sends,
          std::chrono::milliseconds timeout) {
  const Route route = route_of(backend, peer, tensor);
  const auto end = std::make_shared<std::promise<void>>();
  std::future<void> ended = end->get_future();
  // A caller that stops waiting may release the tensor before the network has.
  const auto done = [end, memory = tensor.storage()](const Error* problem) {
    problem != nullptr ? end->set_exception(std::make_exception_ptr(*problem)) : end->set_value();
  };
  sends ? route.port->send(number, route.buffer, done) : route.port->receive(number, route.buffer, done);
  if (ended.wait_for(timeout) != std::future_status::ready) {
    throw Error(ErrorKind::kTimeout, "a direct message of " + std::to_string(route.buffer.bytes) + " bytes " +
                                         (sends ? "to" : "from") + " rank " + std::to_string(peer) +
                                         " timed out after " + std::to_string(timeout.count()) + " ms");
  }
  ended.get();
}

}  // namespace

void bind_trial(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  module.def("remember_direct", &remember, py::arg("backend"), py::arg("peer"), py::arg("tensor"), no_gil,
             "Registers a tensor's memory with the network devices on the path to a rank.");
  module.def("forget_direct", &forget, py::arg("backend"), py::arg("peer"), py::arg("tensor"), no_gil,
             "Undoes remember_direct.");
  module.def(
      "pass_direct", &pass, py::arg("backend"), py::arg("peer"), py::arg("number"), py::arg("tensor"), py::arg("sends"),
      py::arg("timeout"), no_gil,
      "Sends or receives a tensor directly from or to its memory, without a ring, and waits until that is done.");
}

}  // namespace atl::pytorch
