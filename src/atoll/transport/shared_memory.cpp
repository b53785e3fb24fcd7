// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>

#include "atoll/core/error.h"

namespace atl::transport {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

bool may_refuse_pages() {
  static const bool is_strict = [] {
    std::ifstream setting("/proc/sys/vm/overcommit_memory");
    int mode = 0;
    return setting >> mode && mode == 2;
  }();
  return is_strict;
}

void map_part(std::byte* where, std::size_t bytes, int protection, const Fd& memory, std::size_t offset) {
  if (bytes == 0) return;
  if (::mmap(where, bytes, protection, MAP_SHARED | MAP_FIXED, memory.get(), static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    const int error = errno;
    const char* advice = error == ENOMEM ? " (out of memory or of mappings; raise vm.max_map_count)" : "";
    throw Error(ErrorKind::kUnavailable,
                with_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory", error), advice);
  }
  ::madvise(where, bytes, MADV_DONTFORK);
}

}  // namespace

Fd make_sealed_memfd(const char* name, std::size_t bytes) {
  const int raw = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (raw < 0) throw unavailable("cannot make shared memory", errno);
  Fd memory(raw);
  if (::ftruncate(raw, static_cast<off_t>(bytes)) != 0 || ::fcntl(raw, F_ADD_SEALS, kSizeSeals) != 0) {
    throw unavailable("cannot size shared memory to " + std::to_string(bytes) + " bytes", errno);
  }
  if (may_refuse_pages()) allocate_pages(memory, bytes);
  return memory;
}

void allocate_pages(const Fd& memory, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;  // what is lost if a signal comes
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(kPiece, bytes - done);
    if (::fallocate(memory.get(), 0, static_cast<off_t>(done), static_cast<off_t>(piece)) == 0) {
      done += piece;
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    const std::string what = "cannot allocate " + std::to_string(bytes) + " bytes of shared memory";
    throw unavailable(what + " (see CommitLimit in /proc/meminfo)", error);
  }
}

void check_sealed_memfd(const Fd& memory, std::size_t bytes) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    throw Error(ErrorKind::kProtocol, "the peer's shared memory is not sealed against a change of its size");
  }
  struct statfs system {};
  if (::fstatfs(memory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    // Of huge pages, the peer could take some away again.
    throw Error(ErrorKind::kProtocol, "the peer's shared memory is not of the ordinary kind");
  }
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    throw Error(ErrorKind::kProtocol, "the peer's shared memory has ", status.st_size, " bytes instead of ", bytes);
  }
}

Fd duplicate(const Fd& memory) {
  const int copy = ::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw unavailable("cannot pass shared memory to a peer", errno);
  return Fd(copy);
}

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void Unmap::operator()(void* base) const noexcept {
  if (process == fork_depth()) ::munmap(base, bytes);
}

void* map_shared(const Fd& memory, std::size_t bytes, const std::string& what) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw Error(ErrorKind::kUnavailable, with_errno("cannot map " + what, errno));
  return mapped;
}

MappedRing MappedRing::create(std::size_t control_bytes, std::size_t data_bytes) {
  if (!std::has_single_bit(data_bytes) || data_bytes % page_bytes() != 0) {
    throw Error(ErrorKind::kInvalidArgument, "a window of ", data_bytes, " bytes is not a power of two of whole pages");
  }
  Fd memory = make_sealed_memfd("atoll", round_up(control_bytes, page_bytes()) + data_bytes);
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
  MappedRing ring;
  ring.control_bytes_ = round_up(control_bytes, page_bytes());
  ring.data_bytes_ = data_bytes;
  check_sealed_memfd(memory, ring.control_bytes_ + data_bytes);
  const std::size_t bytes = ring.control_bytes_ + 2 * data_bytes;
  void* const reserved = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    throw unavailable("no address space for a window of " + std::to_string(data_bytes) + " bytes", errno);
  }
  ring.base_ = Mapped<std::byte>(static_cast<std::byte*>(reserved), Unmap{bytes});
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  map_part(ring.control(), ring.control_bytes_, PROT_READ | PROT_WRITE, memory, 0);
  map_part(ring.data(), data_bytes, protection, memory, ring.control_bytes_);
  map_part(ring.data() + data_bytes, data_bytes, protection, memory, ring.control_bytes_);
  return ring;
}

}  // namespace atl::transport
