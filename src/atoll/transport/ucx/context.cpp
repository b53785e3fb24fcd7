// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/context.h"

#include <cstdlib>
#include <string_view>

#include "atoll/core/fd.h"
#include "atoll/transport/ucx/library.h"

namespace atl::transport::ucx {

namespace {

ucp_config_t* read_config() {
  ucp_config_t* config = nullptr;
  if (const auto status = library().config_read(nullptr, nullptr, &config); status != UCS_OK) {
    throw Error(ErrorKind::kUnavailable, with_status("UCX's settings (UCX_*) cannot be read", status));
  }
  // Every call here states its kind of memory. To find that out by itself, UCX would watch the program's allocations,
  // for which it patches functions of the C library.
  if (std::getenv("UCX_MEMTYPE_CACHE") == nullptr) library().config_modify(config, "MEMTYPE_CACHE", "n");
  return config;
}

/// Returns whether UCX lists a transport over an InfiniBand or RoCE device.
bool lists_rdma(std::string_view resources) {
  for (const std::string_view name : {" rc_", " dc_", " ud_", " gga_"}) {
    if (resources.find(name) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<Context> Context::open() {
  const Library& ucx = library();
  ucp_config_t* const config = read_config();
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  wanted.features = UCP_FEATURE_AM | UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  wanted.mt_workers_shared = 1;
  auto impl = std::make_unique<Impl>();
  const auto status = ucx.init_version(1, 13, &wanted, config, &impl->handle);
  ucx.config_release(config);
  if (status != UCS_OK) throw Error(ErrorKind::kUnavailable, with_status("UCX cannot start on this machine", status));
  impl->process = fork_depth();
  impl->version = std::string("UCX ") + ucx.get_version_string();
  ucp_context_attr_t facts{};
  facts.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucx.context_query(impl->handle, &facts) == UCS_OK) impl->memory_types = facts.memory_types;
  impl->has_rdma = lists_rdma(printed([&](std::FILE* to) { ucx.context_print_info(impl->handle, to); }));
  return std::shared_ptr<Context>(new Context(std::move(impl)));
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Context::~Context() {
  if (impl_->process == fork_depth()) library().cleanup(impl_->handle);
}

bool Context::has_rdma() const noexcept { return impl_->has_rdma; }

bool Context::knows(MemoryKind kind) const noexcept {
  return (impl_->memory_types & (std::uint64_t{1} << memory_type(kind))) != 0;
}

const std::string& Context::version() const noexcept { return impl_->version; }

Registration::Registration(std::shared_ptr<Context> context, void* data, std::size_t bytes, MemoryKind kind)
    : impl_(std::make_unique<Impl>()) {
  ucp_mem_map_params_t wanted{};
  wanted.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  wanted.address = data;
  wanted.length = bytes;
  wanted.memory_type = memory_type(kind);
  if (const auto status = library().mem_map(context->impl().handle, &wanted, &impl_->handle); status != UCS_OK) {
    throw Error(
        ErrorKind::kUnavailable,
        with_status(std::to_string(bytes) + " bytes of memory cannot be made known to the network devices", status),
        "; raise the limit of locked memory (ulimit -l)");
  }
  impl_->context = std::move(context);
}

Registration::~Registration() {
  if (impl_->context->impl().process == fork_depth()) {
    library().mem_unmap(impl_->context->impl().handle, impl_->handle);
  }
}

}  // namespace atl::transport::ucx
