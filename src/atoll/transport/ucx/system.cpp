// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>

#include "atoll/transport/ucx/context.h"

namespace atl::transport::ucx {

bool system_has_rdma() noexcept {
  std::error_code error;
  // Each InfiniBand or RoCE device has an entry; the folder exists where the kernel knows the kind at all.
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

}  // namespace atl::transport::ucx
