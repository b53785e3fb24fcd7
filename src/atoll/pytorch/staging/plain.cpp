// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/plain.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {

namespace {

at::Tensor as_common(const at::Tensor& tensor) {
  if (is_common(tensor.scalar_type())) return tensor;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  switch (tensor.element_size()) {
    case 1: return tensor.view(at::kByte);
    case 2: return tensor.view(at::kHalf);
    case 4: return tensor.view(at::kInt);
    case 8: return tensor.view(at::kLong);
    default: return tensor.unsqueeze(-1).view(at::kByte);
  }
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

void PlainTensors::note_device(const at::Tensor& tensor) {
  if (!device_) device_ = tensor.device();
  TORCH_CHECK_VALUE(tensor.device() == *device_, "the tensors of one call must be on one device, got some on ",
                    *device_, " and some on ", tensor.device());
}

at::Tensor PlainTensors::read(const at::Tensor& tensor) {
  note_device(tensor);
  if (is_plain(tensor)) return as_common(tensor);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (tensor._is_zerotensor()) return as_common(at::zeros(tensor.sizes(), tensor.options()));
  return as_common(tensor.resolve_conj().resolve_neg().contiguous());
}

at::Tensor PlainTensors::write(const at::Tensor& tensor, bool load) {
  note_device(tensor);
  if (is_plain(tensor)) return as_common(tensor);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor temporary = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (load) temporary.copy_(tensor);
  copies_.emplace_back(tensor, temporary);
  return as_common(temporary);
}

std::vector<at::Tensor> PlainTensors::read(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors) list.push_back(read(tensor));
  return list;
}

std::vector<at::Tensor> PlainTensors::write(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors) list.push_back(write(tensor));
  return list;
}

void PlainTensors::copy_back() const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const auto& [target, temporary] : copies_) target.copy_(temporary, /*non_blocking=*/true);
}

}  // namespace atl::pytorch
