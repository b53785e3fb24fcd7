// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/direct_trial.h"

#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "atoll/pytorch/python/process/direct_device.h"

namespace atl::pytorch {
namespace {

struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::optional<Error> problem;
};

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
  const auto outcome = std::make_shared<Outcome>();
  // A caller that stops waiting may release the tensor before the network has.
  const auto done = [outcome, memory = tensor.storage()](const Error* problem) {
    const std::lock_guard lock(outcome->mutex);
    outcome->is_over = true;
    if (problem != nullptr) outcome->problem = *problem;
    outcome->changed.notify_all();
  };
  if (sends) {
    route.port->send(number, route.buffer, done);
  } else {
    route.port->receive(number, route.buffer, done);
  }
  std::unique_lock lock(outcome->mutex);
  if (!outcome->changed.wait_for(lock, timeout, [&] { return outcome->is_over; })) {
    throw Error(ErrorKind::kTimeout, "a direct message of " + std::to_string(route.buffer.bytes) + " bytes " +
                                         (sends ? "to" : "from") + " rank " + std::to_string(peer) +
                                         " timed out after " + std::to_string(timeout.count()) + " ms");
  }
  if (outcome->problem) throw Error(*outcome->problem);
}

}  // namespace atl::pytorch
