// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace atl::sim {

struct MemoryStats {
  std::size_t capacity = 0;  ///< bytes
  std::size_t held = 0;      ///< bytes that cannot be given out: neither released nor free, rounded to kMemoryAlignment
  std::size_t allocated = 0;  ///< those of them that are not retired
  std::size_t peak = 0;       ///< most that `allocated` has been
};

inline constexpr std::size_t kMemoryAlignment = 512;  ///< of every allocation, bytes
/// Bytes of the host's memory that a device may take beyond what is held and the mebibyte released last, so that small
/// allocations find their pages again.
inline constexpr std::size_t kMaxKept = std::size_t{16} << 20;

/// Memory of a simulated device. It is mapped twice: at the addresses that allocate() gives, which host code cannot touch
/// (a touch is a segmentation fault, as with a real device's), and where host_view() says, for the device's own work.
/// Thread-safe.
class DeviceMemory {
 public:
  /// Reserves `capacity` bytes of address space twice; pages are taken at first use. Throws Error(kUnavailable).
  explicit DeviceMemory(std::size_t capacity);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// At least one byte, aligned to kMemoryAlignment, contents unspecified. Throws Error(kUnavailable) when no free range is
  /// large enough.
  void* allocate(std::size_t bytes);

  /// What allocate() returned belongs to nobody any more, but the device may still work on it: it no longer counts as
  /// allocated, as a program counts, and is held until release().
  void retire(void* device) noexcept;

  /// Gives back what allocate() returned, retired or not, and fills it with 0xEE bytes, so that late readers show.
  void release(void* device) noexcept;

  /// Gives the pages of all free ranges back to the host.
  void empty_cache() noexcept;

  bool contains(const void* address) const noexcept;

  /// Where the byte at `device`, an address inside this memory, can be read and written.
  std::byte* host_view(const void* device) const noexcept;

  /// Distance of `device`, an address inside this memory, from its start: the same for every process that maps it.
  std::size_t offset_of(const void* device) const noexcept;

  /// Where the byte at `offset` from the start can be read and written.
  std::byte* at_offset(std::size_t offset) const noexcept { return host_ + offset; }

  /// Of the shared memory behind both mappings, for passing it to another process. Lives as long as this object.
  int descriptor() const noexcept { return memory_; }

  MemoryStats stats() const;
  /// The peak begins anew at what is allocated now.
  void reset_peak();

 private:
  struct Used {
    std::size_t bytes;
    bool is_retired;
  };

  void add_free(std::size_t offset, std::size_t bytes) noexcept;
  void give_back_pages(std::size_t offset, std::size_t bytes) noexcept;
  bool keeps_too_much() const noexcept;
  void give_back_free_pages() noexcept;

  std::byte* device_ = nullptr;  // the mapping without access
  std::byte* host_ = nullptr;    // the same pages, readable and writable
  std::size_t capacity_ = 0;
  int memory_ = -1;

  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes; neighbours are merged
  std::map<std::size_t, Used> used_;
  MemoryStats stats_;
  std::size_t released_ = 0;  // bytes, since the last look at the pages of free ranges
};

}  // namespace atl::sim
