// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace atl::pytorch {

/// What threads of Atoll tell the runtime of the rank's device before they use it.
struct DeviceThreads {
  c10::Device device{c10::kCPU};                      ///< with its index
  int (*exchange_capture_mode)(int* mode) = nullptr;  ///< cudaThreadExchangeStreamCaptureMode, or its like
};

/// Sets this for all threads that Atoll starts from now on. Called before a group is made. Thread-safe.
void set_device_threads(const DeviceThreads& settings);

/// Prepares the calling thread, which Atoll has started. The rank's device becomes current: what switches to that
/// device and back would make a context on device 0 otherwise. And graphs that other threads capture no longer concern
/// it: an event that it queries would end them. Logs what fails.
void prepare_thread() noexcept;

}  // namespace atl::pytorch
