// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/device_threads.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <mutex>

#include "atoll/core/log.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

constexpr int kOwnCapturesOnly = 1;  // cudaStreamCaptureModeThreadLocal, hipStreamCaptureModeThreadLocal

struct KnownDeviceThreads {
  std::mutex mutex;
  DeviceThreads settings;
};

KnownDeviceThreads& known_device_threads() {
  static auto* const known = new KnownDeviceThreads;
  return *known;
}

}  // namespace

void set_device_threads(const DeviceThreads& settings) {
  const std::lock_guard lock(known_device_threads().mutex);
  known_device_threads().settings = settings;
}

void prepare_thread() noexcept {
  try {
    DeviceThreads settings;
    {
      const std::lock_guard lock(known_device_threads().mutex);
      settings = known_device_threads().settings;
    }
    if (settings.device.is_cpu()) return;
    c10::impl::VirtualGuardImpl(settings.device.type()).setDevice(settings.device);
    int mode = kOwnCapturesOnly;
    if (settings.exchange_capture_mode != nullptr) settings.exchange_capture_mode(&mode);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "a thread of Atoll could not be prepared for the rank's device: " + plain_text(error));
  }
}

}  // namespace atl::pytorch
