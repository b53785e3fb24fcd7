// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/sim/device/memory.h"
#include "atoll/sim/device/model.h"
#include "atoll/sim/device/stream.h"

namespace atl::sim {

inline constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;

/// Reads a number from an environment variable, such as "2.5" or "16G"; it may end with K, M or G (powers of 1000).
/// Returns `fallback` if the variable is not set. Throws c10::ValueError naming the variable.
double number_from(const char* name, double fallback);

/// The operations that libraries issue to one device. Thread-safe.
class LibraryOrder {
 public:
  /// Issues an operation in the order in which a busy real device would run it: a collective begins when everything
  /// that any communicator issued before it has ended, and a message when the collectives before it have. Ranks that
  /// issue operations of several communicators in different orders then wait for each other forever. `enqueue` puts the
  /// operation in `stream` and returns its end.
  Event issue(Stream& stream, bool is_message, const std::function<Event()>& enqueue);

  /// Notes the end of an operation of any library, issued in this order or not.
  void note(const Event& end);

  /// Blocks until all operations that were noted so far have ended.
  void wait();

 private:
  std::mutex mutex_;
  std::deque<Event> all_;        // from the first that is under way
  Event collective_;             // the last collective
  std::vector<Event> messages_;  // issued since then
};

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

c10::Stream as_stream(c10::DeviceIndex index, c10::StreamId id) noexcept;  ///< index -1: of the current device
Stream& stream_of(const c10::Stream& stream);

/// Generators of a simulated device, which produce the numbers of PyTorch's CPU generator with the same seed.
at::Generator new_generator(c10::DeviceIndex index);
const at::Generator& default_generator(c10::DeviceIndex index);

/// Returns the CPU generator inside one that came from new_generator().
at::Generator host_generator(const at::Generator& generator);

/// Returns a CPU tensor over the same bytes as `tensor`, which is on a simulated device, with its sizes and strides.
/// Only for work that the device's streams run; `tensor` must outlive it.
at::Tensor host_view(const at::Tensor& tensor);

/// Returns where the byte at `address` of any simulated device of this process can be read and written; nullptr for
/// other addresses.
void* host_address(const void* address) noexcept;

/// The work of one operator, from which its time is modelled.
struct OperatorWork {
  std::string_view name{};  ///< such as "addmm"; empty for work that takes no modelled time
  double flops = 0;
  double bytes = 0;  ///< of memory traffic
};

/// Runs `work`, an operator that returns what it did, on the current stream of device `index`.
void run_operator(c10::DeviceIndex index, const std::function<OperatorWork()>& work);

/// Runs work that takes no modelled time in the same way.
void run_untimed(c10::DeviceIndex index, const std::function<void()>& work);

}  // namespace atl::sim
