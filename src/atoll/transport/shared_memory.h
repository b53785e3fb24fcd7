// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "atoll/core/fd.h"

// Anonymous memory that processes of one host share.
namespace atl::transport {

/// Creates anonymous memory of `bytes` zeros that can be passed to another process and can neither shrink nor grow. It
/// ends with the last process that holds or maps it. Its pages are allocated when they are first touched, but at once
/// where the system may still refuse them then (vm.overcommit_memory=2), which would end the process with SIGBUS.
/// Throws Error(kUnavailable).
Fd make_sealed_memfd(const char* name, std::size_t bytes);

/// Allocates the pages of the first `bytes` bytes. Throws Error(kUnavailable).
void allocate_pages(const Fd& memory, std::size_t bytes);

/// Throws Error(kProtocol) unless `memory` is a memfd of exactly `bytes` whose size is sealed: only then can no peer
/// make an access to its mapping fault.
void check_sealed_memfd(const Fd& memory, std::size_t bytes);

/// Returns a second descriptor of the same memory, to be passed to a peer. Throws Error(kUnavailable).
Fd duplicate(const Fd& memory);

/// The size of a page of this machine.
std::size_t page_bytes() noexcept;

/// Rounds up to a multiple of `to`.
constexpr std::size_t round_up(std::size_t bytes, std::size_t to) noexcept { return (bytes + to - 1) / to * to; }

/// Unmaps memory, but not in a forked child, where another mapping may occupy the addresses.
struct Unmap {
  std::size_t bytes = 0;
  std::uint32_t process = fork_depth();
  void operator()(void* base) const noexcept;
};
template <class T>
using Mapped = std::unique_ptr<T, Unmap>;

/// Maps memory for reading and writing. Throws Error(kUnavailable): "cannot map `what`".
void* map_shared(const Fd& memory, std::size_t bytes, const std::string& what);

/// Memory in a memfd: a control area, then a data area that is mapped twice back to back, so that any range of at most
/// data_bytes() that starts inside the first copy is contiguous. The mapping does not exist in forked children.
class MappedRing {
 public:
  enum class Access { kReadWrite, kReadOnlyData };

  MappedRing() = default;

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
  std::byte* control() const noexcept { return base_.get(); }
  std::byte* data() const noexcept { return base_.get() + control_bytes_; }
  std::size_t data_bytes() const noexcept { return data_bytes_; }
  /// Returns the place of a position that counts bytes from the beginning and does not wrap.
  std::byte* at(std::uint64_t position) const noexcept { return data() + (position & (data_bytes_ - 1)); }

  /// Hands over the memfd that create() made, to be passed to a peer; the mapping does not need it.
  Fd take_memory() noexcept { return std::move(memory_); }

 private:
  Mapped<std::byte> base_;
  std::size_t control_bytes_ = 0;
  std::size_t data_bytes_ = 0;
  Fd memory_;
};

}  // namespace atl::transport
