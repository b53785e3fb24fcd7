// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "atoll/core/fd.h"

namespace atl::transport {

/// Memory in a memfd: a control area, then a data area that is mapped twice back to back, so that any range of at most
/// data_bytes() that starts inside the first copy is contiguous. The mapping does not exist in forked children.
class MappedRing {
 public:
  enum class Access { kReadWrite, kReadOnlyData };

  MappedRing() = default;
  ~MappedRing();
  MappedRing(MappedRing&& other) noexcept;
  MappedRing& operator=(MappedRing&& other) noexcept;
  MappedRing(const MappedRing&) = delete;
  MappedRing& operator=(const MappedRing&) = delete;

  /// Creates zeroed memory, sealed against a change of its size (make_sealed_memfd), and maps it for reading and
  /// writing. `data_bytes` is a power of two and a multiple of the page size; `control_bytes` is rounded up to whole
  /// pages (0: none). Throws Error(kUnavailable) when the system has no memory or descriptor left.
  static MappedRing create(std::size_t control_bytes, std::size_t data_bytes);

  /// Does the same without a control area, for memory that no other process maps.
  static MappedRing create_private(std::size_t data_bytes);

  /// Maps what create() made with equal sizes in another process. Throws Error(kProtocol) when `memory` is not such a
  /// sealed memfd of exactly that size, Error(kUnavailable) when it cannot be mapped.
  static MappedRing map(const Fd& memory, std::size_t control_bytes, std::size_t data_bytes, Access access);

  explicit operator bool() const noexcept { return base_ != nullptr; }
  std::byte* control() const noexcept { return base_; }
  std::byte* data() const noexcept { return base_ + control_bytes_; }
  std::size_t data_bytes() const noexcept { return data_bytes_; }
  /// Returns the place of a position that counts bytes from the beginning and does not wrap.
  std::byte* at(std::uint64_t position) const noexcept { return data() + (position & (data_bytes_ - 1)); }

  /// Hands over the memfd that create() made, to be passed to a peer; the mapping does not need it.
  Fd take_memory() noexcept { return std::move(memory_); }

 private:
  MappedRing(std::byte* base, std::size_t control_bytes, std::size_t data_bytes);
  void unmap() noexcept;

  std::byte* base_ = nullptr;
  std::size_t control_bytes_ = 0;
  std::size_t data_bytes_ = 0;
  std::uint32_t process_ = 0;  // fork_depth() of the process that has the mapping
  Fd memory_;
};

}  // namespace atl::transport
