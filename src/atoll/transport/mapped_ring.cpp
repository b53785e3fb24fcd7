// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/mapped_ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/memfd.h"

namespace atl::transport {
namespace {

std::size_t page_size() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

void map_part(std::byte* where, std::size_t bytes, int protection, const Fd& memory, std::size_t offset) {
  if (bytes == 0) return;
  if (::mmap(where, bytes, protection, MAP_SHARED | MAP_FIXED, memory.get(), static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    const int error = errno;
    const char* advice = error == ENOMEM ? " (out of memory or of mappings; raise vm.max_map_count)" : "";
    throw Error(ErrorKind::kUnavailable,
                with_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory", error) + advice);
  }
  ::madvise(where, bytes, MADV_DONTFORK);
}

}  // namespace

MappedRing::MappedRing(std::byte* base, std::size_t control_bytes, std::size_t data_bytes)
    : base_(base), control_bytes_(control_bytes), data_bytes_(data_bytes), process_(fork_depth()) {}

MappedRing::~MappedRing() { unmap(); }

MappedRing::MappedRing(MappedRing&& other) noexcept { *this = std::move(other); }

MappedRing& MappedRing::operator=(MappedRing&& other) noexcept {
  if (this != &other) {
    unmap();
    base_ = std::exchange(other.base_, nullptr);
    control_bytes_ = std::exchange(other.control_bytes_, 0);
    data_bytes_ = std::exchange(other.data_bytes_, 0);
    process_ = other.process_;
    memory_ = std::move(other.memory_);
  }
  return *this;
}

void MappedRing::unmap() noexcept {
  // In a forked child another mapping may occupy these addresses.
  if (base_ != nullptr && process_ == fork_depth()) ::munmap(base_, control_bytes_ + 2 * data_bytes_);
  base_ = nullptr;
}

MappedRing MappedRing::create(std::size_t control_bytes, std::size_t data_bytes) {
  if (!std::has_single_bit(data_bytes) || data_bytes % page_size() != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "a window of " + std::to_string(data_bytes) + " bytes is not a power of two of whole pages");
  }
  Fd memory = make_sealed_memfd("atoll", whole_pages(control_bytes) + data_bytes);
  MappedRing ring = map(memory, control_bytes, data_bytes, Access::kReadWrite);
  ring.memory_ = std::move(memory);
  return ring;
}

MappedRing MappedRing::create_private(std::size_t data_bytes) {
  MappedRing ring = create(0, data_bytes);
  ring.memory_.reset();
  return ring;
}

MappedRing MappedRing::map(const Fd& memory, std::size_t control_bytes, std::size_t data_bytes, Access access) {
  const std::size_t control = whole_pages(control_bytes);
  check_sealed_memfd(memory, control + data_bytes);
  void* const reserved =
      ::mmap(nullptr, control + 2 * data_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("no address space for a window of " + std::to_string(data_bytes) + " bytes", errno));
  }
  MappedRing ring(static_cast<std::byte*>(reserved), control, data_bytes);
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  map_part(ring.control(), control, PROT_READ | PROT_WRITE, memory, 0);
  map_part(ring.data(), data_bytes, protection, memory, control);
  map_part(ring.data() + data_bytes, data_bytes, protection, memory, control);
  return ring;
}

}  // namespace atl::transport
