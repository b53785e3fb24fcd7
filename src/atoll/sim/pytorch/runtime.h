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

/// Of an environment variable like "2.5" or "16G": a number that may end with K, M or G (powers of 1000); `fallback` when it
/// is not set. Throws c10::ValueError naming the variable.
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

/// Of the devices of this process that are made from now on.
void set_kind(DeviceKind kind);

/// The number of devices: ATOLL_SIM_DEVICES, by default 8. They are made at first use. Throws c10::ValueError for a value that
/// is not one.
c10::DeviceIndex device_count();

/// Device `index`, or the current one for -1. Throws c10::Error for one that is not there, and in a forked child.
Device& device(c10::DeviceIndex index);

/// Gives the host's pages of what is free on all devices back.
void empty_caches() noexcept;

/// The device that was used already and whose memory holds `address`, or nullptr.
Device* device_of(const void* address) noexcept;

/// Whether a device has been used.
bool is_initialized() noexcept;

// Each thread's own.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index) noexcept;
c10::Stream set_current_stream(c10::Stream stream);  ///< returns the one before

/// Whether the calling thread acts as if its streams were being captured into a graph. The device has no graphs: this is for
/// testing code that must refuse them.
bool is_capturing() noexcept;
void pretend_capturing(bool on) noexcept;

/// From now on every use of an event, and every question to a Work, throws c10::Error on threads whose names begin with
/// `threads` (none: on no thread): what a real device does for the rest of the process once it has met an error. For tests.
void pretend_failed(const std::optional<std::string>& threads);
void require_working();  ///< throws it

Stream& stream_of(const c10::Stream& stream);

}  // namespace atl::sim
