// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/library.h"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <optional>

#include "atoll/core/error.h"

namespace atl::transport::ucx {

namespace {

constexpr const char* kFile = "libucp.so.0";

/// Restores the handlers of these signals, which belong to the program and which UCX up to 1.13 replaces when it is
/// loaded.
class KeepSignals {
 public:
  KeepSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action {};
      if (::sigaction(kSignals[i], nullptr, &action) == 0) before_[i] = action;
    }
  }
  ~KeepSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (before_[i]) ::sigaction(kSignals[i], &*before_[i], nullptr);
    }
  }
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;

 private:
  static constexpr std::array kSignals{SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<std::optional<struct sigaction>, kSignals.size()> before_;
};

void* open_library() {
  const KeepSignals keep;
  void* const handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorKind::kUnavailable, std::string("UCX cannot be loaded: ") + (why != nullptr ? why : kFile) +
                                             "; install Debian's libucx0, or pip install libucx-cu13");
  }
  return handle;
}

}  // namespace

FoundFunction look_up(const char* name) {
  static void* const handle = open_library();  // tried again after a failure
  void* const found = ::dlsym(handle, name);
  if (found == nullptr) {
    throw Error(ErrorKind::kUnavailable, std::string(kFile) + " has no function " + name +
                                             ": UCX 1.13 or newer is needed, Debian's libucx0 or PyPI's libucx-cu13");
  }
  return {found};
}

const Library& library() {
  static const Library loaded{};
  return loaded;
}

std::string with_status(const std::string& what, ucs_status_t status) {
  return what + ": " + library().status_string(status);
}

ucs_memory_type_t memory_type(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost: return UCS_MEMORY_TYPE_HOST;
    case MemoryKind::kCuda: return UCS_MEMORY_TYPE_CUDA;
    case MemoryKind::kRocm: return UCS_MEMORY_TYPE_ROCM;
  }
  return UCS_MEMORY_TYPE_UNKNOWN;
}

}  // namespace atl::transport::ucx
