// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/aten_tensor.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

namespace atl::pytorch {

bool wait_for(c10::Device device, Deadline until) {
  constexpr std::chrono::microseconds kDevicePollInterval{50};
  if (device.is_cpu()) return true;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (until.is_never()) {
    stream.synchronize();
    return true;
  }
  c10::Event reached(device.type());
  reached.record(stream);
  while (!reached.query()) {
    if (until.expired()) return false;
    std::this_thread::sleep_for(kDevicePollInterval);
  }
  return true;
}

}  // namespace atl::pytorch
