// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/host_bytes.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>

namespace atl::pytorch {

infer::HostBytes host_bytes_of(const at::Tensor& tensor) {
  const at::Tensor values =
      tensor.resolve_conj().resolve_neg();  // which may be bits of the tensor and not in its memory
  const auto host = std::make_shared<const at::Tensor>(values.to(at::kCPU).contiguous());
  return {{static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes()}, host};
}

}  // namespace atl::pytorch
