// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "atoll/transport/direct.h"

namespace atl::transport::ucx {

/// UCX's functions, found at run time: libatoll does not need the library to be installed. Works from API 1.13 on,
/// because UCX 1.x keeps its functions and its structures state which of their fields are set.
struct Library {
  decltype(&::ucp_get_version_string) get_version_string;
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_modify) config_modify;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_cleanup) cleanup;
  decltype(&::ucp_context_query) context_query;
  decltype(&::ucp_context_print_info) context_print_info;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_destroy) worker_destroy;
  decltype(&::ucp_worker_get_address) worker_get_address;
  decltype(&::ucp_worker_release_address) worker_release_address;
  decltype(&::ucp_worker_get_efd) worker_get_efd;
  decltype(&::ucp_worker_arm) worker_arm;
  decltype(&::ucp_worker_progress) worker_progress;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx;
  decltype(&::ucp_ep_print_info) ep_print_info;
  decltype(&::ucp_am_send_nbx) am_send_nbx;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx;
  decltype(&::ucp_tag_send_nbx) tag_send_nbx;
  decltype(&::ucp_tag_recv_nbx) tag_recv_nbx;
  decltype(&::ucp_request_check_status) request_check_status;
  decltype(&::ucp_request_free) request_free;
  decltype(&::ucp_mem_map) mem_map;
  decltype(&::ucp_mem_unmap) mem_unmap;
  decltype(&::ucs_status_string) status_string;
};

/// Opens the library once per process and never closes it, because it keeps threads. Throws Error(kUnavailable).
const Library& library();

/// Returns "cannot make a worker: Out of memory".
std::string with_status(const std::string& what, ucs_status_t status);

ucs_memory_type_t memory_type(MemoryKind kind) noexcept;

}  // namespace atl::transport::ucx
