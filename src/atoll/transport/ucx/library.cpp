// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/library.h"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <optional>

#include "atoll/core/error.h"
#include "atoll/transport/direct.h"

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

template <class Function>
void find(void* handle, const char* name, Function& function) {
  void* const found = ::dlsym(handle, name);
  if (found == nullptr) {
    throw Error(ErrorKind::kUnavailable, std::string(kFile) + " has no function " + name +
                                             ": UCX 1.13 or newer is needed, Debian's libucx0 or PyPI's libucx-cu13");
  }
  function = reinterpret_cast<Function>(found);
}

Library load() {
  const KeepSignals keep;
  void* const handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorKind::kUnavailable, std::string("UCX cannot be loaded: ") + (why != nullptr ? why : kFile) +
                                             "; install Debian's libucx0, or pip install libucx-cu13");
  }
  Library found{};
  find(handle, "ucp_get_version_string", found.get_version_string);
  find(handle, "ucp_config_read", found.config_read);
  find(handle, "ucp_config_modify", found.config_modify);
  find(handle, "ucp_config_release", found.config_release);
  find(handle, "ucp_init_version", found.init_version);
  find(handle, "ucp_cleanup", found.cleanup);
  find(handle, "ucp_context_query", found.context_query);
  find(handle, "ucp_context_print_info", found.context_print_info);
  find(handle, "ucp_worker_create", found.worker_create);
  find(handle, "ucp_worker_destroy", found.worker_destroy);
  find(handle, "ucp_worker_get_address", found.worker_get_address);
  find(handle, "ucp_worker_release_address", found.worker_release_address);
  find(handle, "ucp_worker_get_efd", found.worker_get_efd);
  find(handle, "ucp_worker_arm", found.worker_arm);
  find(handle, "ucp_worker_progress", found.worker_progress);
  find(handle, "ucp_worker_set_am_recv_handler", found.worker_set_am_recv_handler);
  find(handle, "ucp_ep_create", found.ep_create);
  find(handle, "ucp_ep_close_nbx", found.ep_close_nbx);
  find(handle, "ucp_ep_print_info", found.ep_print_info);
  find(handle, "ucp_am_send_nbx", found.am_send_nbx);
  find(handle, "ucp_am_recv_data_nbx", found.am_recv_data_nbx);
  find(handle, "ucp_tag_send_nbx", found.tag_send_nbx);
  find(handle, "ucp_tag_recv_nbx", found.tag_recv_nbx);
  find(handle, "ucp_request_check_status", found.request_check_status);
  find(handle, "ucp_request_free", found.request_free);
  find(handle, "ucp_mem_map", found.mem_map);
  find(handle, "ucp_mem_unmap", found.mem_unmap);
  find(handle, "ucs_status_string", found.status_string);  // of libucs, on which libucp depends
  return found;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();  // tried again after a failure
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
