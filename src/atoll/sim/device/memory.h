// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "atoll/core/fd.h"

namespace atl::sim {

struct MemoryStats {
  std::size_t capacity = 0;   ///< bytes
  std::size_t held = 0;       ///< bytes that cannot be allocated: not yet released, rounded to kMemoryAlignment
  std::size_t allocated = 0;  ///< those that are not retired
  std::size_t peak = 0;       ///< the maximum of `allocated`
};

inline constexpr std::size_t kMemoryAlignment = 512;  ///< of every allocation, bytes
/// Bytes of host memory that a device may use beyond what is held and the mebibyte released last, so that small
/// allocations reuse their pages.
inline constexpr std::size_t kMaxKept = std::size_t{16} << 20;

/// Memory of a simulated device. It is mapped twice: at the addresses that allocate() returns, which host code cannot
/// touch (an access is a segmentation fault, as with a real device's memory), and at host_view(), for the device's own
/// work. Thread-safe.
class DeviceMemory {
 public:
  /// Reserves `capacity` bytes of address space twice; pages are taken at first use. Throws Error(kUnavailable).
  explicit DeviceMemory(std::size_t capacity);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Allocates at least one byte, aligned to kMemoryAlignment, with unspecified contents. Throws Error(kUnavailable) if
  /// no free range is large enough.
  void* allocate(std::size_t bytes);

  /// Notes that the program has freed what allocate() returned, while the device may still work on it: it no longer
  /// counts as allocated, but is held until release().
  void retire(void* device) noexcept;

  /// Frees what allocate() returned, retired or not, and fills it with 0xEE bytes, so that late reads are detected.
  void release(void* device) noexcept;

  /// Returns the pages of all free ranges to the host.
  void empty_cache() noexcept {
    const std::lock_guard lock(mutex_);
    give_back_free_pages();
  }

  bool contains(const void* address) const noexcept {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= device_.get() && byte < device_.get() + capacity_;
  }

  /// Returns where the byte at `device`, an address inside this memory, can be read and written.
  std::byte* host_view(const void* device) const noexcept { return at_offset(offset_of(device)); }

  /// Returns the offset of `device`, an address inside this memory, which is the same for every process that maps it.
  std::size_t offset_of(const void* device) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(device) - device_.get());
  }

  /// Returns where the byte at `offset` from the start can be read and written.
  std::byte* at_offset(std::size_t offset) const noexcept { return host_.get() + offset; }

  /// The descriptor of the memory behind both mappings, for passing it to another process. Owned by this object.
  int descriptor() const noexcept { return memory_.get(); }

  MemoryStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  /// Sets the peak to what is allocated now.
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak = stats_.allocated;
  }

 private:
  struct Used {
    std::size_t bytes;
    bool is_retired;
  };
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* address) const noexcept;
  };
  using Mapping = std::unique_ptr<std::byte, Unmap>;

  Mapping map(int protection) const;
  void add_free(std::size_t offset, std::size_t bytes) noexcept;
  void give_back_pages(std::size_t offset, std::size_t bytes) noexcept;
  bool keeps_too_much() const noexcept;
  void give_back_free_pages() noexcept;

  const std::size_t capacity_;
  const Fd memory_;
  Mapping device_;  // without access
  Mapping host_;    // the same pages, readable and writable

  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes; neighbours are merged
  std::map<std::size_t, Used> used_;
  MemoryStats stats_;
  std::size_t released_ = 0;  // bytes since the pages of free ranges were last checked
};

}  // namespace atl::sim
