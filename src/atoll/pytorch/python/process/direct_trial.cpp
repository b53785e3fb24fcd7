// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/direct_trial.h"

#include <future>
#include <limits>
#include <memory>
#include <string>

#include "atoll/pytorch/python/process/direct_device.h"

namespace atl::pytorch {
namespace {

struct Route {
  transport::DirectPort* port;
  transport::DirectBuffer buffer;
};

Route route_of(const collectives::Group& group, int peer, const at::Tensor& tensor) {
  const std::string what = "a direct message to or from rank " + std::to_string(peer);
  auto* const port = group.direct_port(peer, std::numeric_limits<std::uint64_t>::max());
  if (port == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                what + ": no link over UCX is open there; pass a message first, with ATOLL_TRANSPORT=ucx");
  }
  const auto buffer = network_buffer(tensor);
  if (!buffer || !port->reaches(buffer->kind)) {
    throw Error(ErrorKind::kInvalidArgument,
                what + ": UCX does not know memory of " + tensor.device().str() + " here; use a tensor on the CPU");
  }
  return {port, *buffer};
}

}  // namespace

void remember_direct(const collectives::Group& group, int peer, const at::Tensor& tensor) {
  const Route route = route_of(group, peer, tensor);
  route.port->remember(route.buffer);
}

void forget_direct(const collectives::Group& group, int peer, const at::Tensor& tensor) {
  const Route route = route_of(group, peer, tensor);
  route.port->forget(route.buffer);
}

void pass_direct(const collectives::Group& group, int peer, std::uint64_t number, const at::Tensor& tensor, bool sends,
                 std::chrono::milliseconds timeout) {
  const Route route = route_of(group, peer, tensor);
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

}  // namespace atl::pytorch
