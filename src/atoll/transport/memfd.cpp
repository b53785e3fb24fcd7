// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/memfd.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

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

}  // namespace

Fd make_sealed_memfd(const char* name, std::size_t bytes) {
  const int raw = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (raw < 0) {
    const int error = errno;
    const char* advice = error == EMFILE ? " (raise the descriptor limit: ulimit -n)" : "";
    throw Error(ErrorKind::kUnavailable, with_errno("cannot make shared memory", error) + advice);
  }
  Fd memory(raw);
  if (::ftruncate(raw, static_cast<off_t>(bytes)) != 0 || ::fcntl(raw, F_ADD_SEALS, kSizeSeals) != 0) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("cannot size shared memory to " + std::to_string(bytes) + " bytes", errno));
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
    throw Error(ErrorKind::kUnavailable, with_errno(what + " (see CommitLimit in /proc/meminfo)", error));
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
    throw Error(ErrorKind::kProtocol, "the peer's shared memory has " + std::to_string(status.st_size) +
                                          " bytes instead of " + std::to_string(bytes));
  }
}

Fd duplicate(const Fd& memory) {
  const int copy = ::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw Error(ErrorKind::kUnavailable, with_errno("cannot pass shared memory to a peer", errno));
  return Fd(copy);
}

}  // namespace atl::transport
