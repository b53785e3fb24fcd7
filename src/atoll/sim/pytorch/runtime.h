// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/sim/device/memory.h"
#include "atoll/sim/device/model.h"
#include "atoll/sim/device/stream.h"
#include "atoll/sim/pytorch/library_order.h"

namespace atl::sim {

inline constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;

/// Reads a number from an environment variable, such as "2.5" or "16G"; it may end with K, M or G (powers of 1000).
/// Returns `fallback` if the variable is not set. Throws c10::ValueError naming the variable.
double number_from(const char* name, double fallback);

/// One simulated device as PyTorch sees it. Its streams live as long as the process; stream 0 is the default one.
/// Thread-safe.
class Device {
 public:
  Device(std::size_t memory_bytes, DeviceKind kind, double speed, double copy_bytes_per_s, std::uint64_t seed);

  DeviceMemory& memory() noexcept { return memory_; }
  Model& model() noexcept { return model_; }
  const Punctuality& punctuality() const noexcept { return punctuality_; }
  LibraryOrder& library_order() noexcept { return library_order_; }

  Stream& stream(c10::StreamId id);
  c10::StreamId new_stream();
  c10::StreamId pool_stream();

  /// Blocks until all streams are idle.
  void synchronize();

 private:
  std::vector<Stream*> all_streams();

  Model model_;
  DeviceMemory memory_;
  Punctuality punctuality_;
  LibraryOrder library_order_;
  std::mutex mutex_;  // guards the vector
  std::vector<std::unique_ptr<Stream>> streams_;
  c10::StreamId next_of_pool_ = 0;
};

/// Sets the kind of the devices that this process makes from now on.
void set_kind(DeviceKind kind);

/// Returns the number of devices: ATOLL_SIM_DEVICES, by default 8. They are made at first use. Throws c10::ValueError
/// for an invalid value.
c10::DeviceIndex device_count();

/// Returns device `index`, or the current one for -1. Throws c10::Error if it does not exist, and in a forked child.
Device& device(c10::DeviceIndex index);

/// Returns the pages of free memory of all devices to the host.
void empty_caches() noexcept;

/// Returns the device, among those already in use, whose memory contains `address`, or nullptr.
Device* device_of(const void* address) noexcept;

/// Returns whether a device has been used.
bool is_initialized() noexcept;

/// Returns the devices that have been used or made current, on each of which a real accelerator has a context.
std::vector<int> used_devices();

// Each thread has its own current device and streams.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index);             ///< begins to use it, as CUDA makes a context
void reset_current_device(c10::DeviceIndex index) noexcept;  ///< does not
c10::Stream current_stream(c10::DeviceIndex index) noexcept;
c10::Stream set_current_stream(c10::Stream stream);  ///< returns the previous one

/// Returns whether the calling thread acts as if its streams were being captured into a graph. The device has no
/// graphs: this tests code that must refuse them.
bool is_capturing() noexcept;

/// Throws c10::Error if `on` is false and another thread has queried an event in the meantime, without having said that
/// captures do not concern it: with CUDA that ends them.
void pretend_capturing(bool on);
void note_query() noexcept;  ///< by the calling thread

/// Says how captures by other threads concern the calling thread, with the signature and the numbers of CUDA's
/// cudaThreadExchangeStreamCaptureMode.
int exchange_capture_mode(int* mode) noexcept;

/// Makes every use of an event, and every query of a Work, throw c10::Error on threads whose names begin with `threads`
/// (none: on no thread), as a real device does for the rest of the process after an error. For tests.
void pretend_failed(const std::optional<std::string>& threads);
void require_working();  ///< throws if the device has failed on this thread

Stream& stream_of(const c10::Stream& stream);

}  // namespace atl::sim
