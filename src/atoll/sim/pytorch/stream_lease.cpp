// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/stream_lease.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

struct Returned {
  std::mutex mutex;
  std::vector<c10::Stream> streams;
};

// Never destroyed: leases may outlive static objects.
Returned& returned() {
  static auto* const all = new Returned;
  return *all;
}

c10::Stream lease(c10::DeviceIndex index) {
  const std::lock_guard lock(returned().mutex);
  auto& streams = returned().streams;
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const c10::Stream& stream) {
    return stream.device_index() == index && stream_of(stream).is_idle();
  });
  if (found == streams.end()) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), device(index).new_stream());
  }
  const c10::Stream stream = *found;
  streams.erase(found);
  return stream;
}

}  // namespace

StreamLease::StreamLease(c10::DeviceIndex index) : stream_(lease(index)), queue_(&stream_of(stream_)) {}

StreamLease::~StreamLease() {
  const std::lock_guard lock(returned().mutex);
  returned().streams.push_back(stream_);
}

}  // namespace atl::sim
