// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "atoll/transport/direct.h"
#include "atoll/transport/ucx/context.h"

// What context.cpp and worker.cpp share: UCX's functions and handles.
namespace atl::transport::ucx {

/// Where a function lies; converts to a pointer of its type.
struct FoundFunction {
  void* address;
  template <class Function>
  operator Function*() const noexcept {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address);
  }
};

/// Finds a function in UCX's library, which is opened once per process and never closed, because it keeps threads.
/// Throws Error(kUnavailable).
FoundFunction look_up(const char* name);

/// UCX's functions, found at run time: libatoll does not need the library to be installed. Works from API 1.13 on,
/// because UCX 1.x keeps its functions and its structures state which of their fields are set.
struct Library {
  decltype(&::ucp_get_version_string) get_version_string = look_up("ucp_get_version_string");
  decltype(&::ucp_config_read) config_read = look_up("ucp_config_read");
  decltype(&::ucp_config_modify) config_modify = look_up("ucp_config_modify");
  decltype(&::ucp_config_release) config_release = look_up("ucp_config_release");
  decltype(&::ucp_init_version) init_version = look_up("ucp_init_version");
  decltype(&::ucp_cleanup) cleanup = look_up("ucp_cleanup");
  decltype(&::ucp_context_query) context_query = look_up("ucp_context_query");
  decltype(&::ucp_context_print_info) context_print_info = look_up("ucp_context_print_info");
  decltype(&::ucp_worker_create) worker_create = look_up("ucp_worker_create");
  decltype(&::ucp_worker_destroy) worker_destroy = look_up("ucp_worker_destroy");
  decltype(&::ucp_worker_get_address) worker_get_address = look_up("ucp_worker_get_address");
  decltype(&::ucp_worker_release_address) worker_release_address = look_up("ucp_worker_release_address");
  decltype(&::ucp_worker_get_efd) worker_get_efd = look_up("ucp_worker_get_efd");
  decltype(&::ucp_worker_arm) worker_arm = look_up("ucp_worker_arm");
  decltype(&::ucp_worker_progress) worker_progress = look_up("ucp_worker_progress");
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = look_up("ucp_worker_set_am_recv_handler");
  decltype(&::ucp_ep_create) ep_create = look_up("ucp_ep_create");
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = look_up("ucp_ep_close_nbx");
  decltype(&::ucp_ep_print_info) ep_print_info = look_up("ucp_ep_print_info");
  decltype(&::ucp_am_send_nbx) am_send_nbx = look_up("ucp_am_send_nbx");
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = look_up("ucp_am_recv_data_nbx");
  decltype(&::ucp_tag_send_nbx) tag_send_nbx = look_up("ucp_tag_send_nbx");
  decltype(&::ucp_tag_recv_nbx) tag_recv_nbx = look_up("ucp_tag_recv_nbx");
  decltype(&::ucp_request_check_status) request_check_status = look_up("ucp_request_check_status");
  decltype(&::ucp_request_free) request_free = look_up("ucp_request_free");
  decltype(&::ucp_mem_map) mem_map = look_up("ucp_mem_map");
  decltype(&::ucp_mem_unmap) mem_unmap = look_up("ucp_mem_unmap");
  decltype(&::ucs_status_string) status_string = look_up("ucs_status_string");  // of libucs, on which libucp depends
};

/// Finds all functions with the first call. Throws Error(kUnavailable).
const Library& library();

/// Returns "cannot make a worker: Out of memory".
std::string with_status(const std::string& what, ucs_status_t status);

ucs_memory_type_t memory_type(MemoryKind kind) noexcept;

/// Returns what `print` writes to a stream.
template <class Print>
std::string printed(const Print& print) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

struct Context::Impl {
  ucp_context_h handle = nullptr;
  std::uint32_t process = 0;  // fork_depth() of the process that opened it
  std::uint64_t memory_types = 0;
  bool has_rdma = false;
  std::string version;
};

struct Registration::Impl {
  std::shared_ptr<Context> context;
  ucp_mem_h handle = nullptr;
};

}  // namespace atl::transport::ucx
