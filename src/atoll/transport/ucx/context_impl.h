// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "atoll/transport/ucx/context.h"

// Shared by context.cpp and worker.cpp.
namespace atl::transport::ucx {

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
