// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/operands.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace atl::pytorch {
namespace {

bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

collectives::Segment memory_of(const at::Tensor& tensor) {
  // Writing through the pointer is what the caller asked for; version counters are c10d's business.
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::uint64_t>(tensor.nbytes())};
}

}  // namespace

bool Operands::on_device(const at::Tensor& tensor) {
  const bool is_cpu = tensor.device().is_cpu();
  const bool mixed = is_cpu ? staging_ != nullptr : !kept_.empty() && staging_ == nullptr;
  TORCH_CHECK_VALUE(!mixed, "the tensors of one call must be on one device, got some on the CPU and some on ",
                    is_cpu ? staging_->device() : tensor.device());
  if (!is_cpu && !staging_) staging_ = std::make_shared<Staging>();
  return !is_cpu;
}

collectives::Segment Operands::read(const at::Tensor& tensor) {
  if (on_device(tensor)) {
    kept_.push_back(staging_->load(tensor));
    return memory_of(kept_.back());
  }
  if (is_plain(tensor)) {
    kept_.push_back(tensor);
  } else {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    kept_.push_back(tensor.resolve_conj().resolve_neg().contiguous());
  }
  return memory_of(kept_.back());
}

collectives::Segment Operands::write(const at::Tensor& tensor, bool load) {
  if (on_device(tensor)) {
    kept_.push_back(staging_->store(tensor, load));
    return memory_of(kept_.back());
  }
  if (is_plain(tensor)) {
    kept_.push_back(tensor);
    return memory_of(tensor);
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor temporary = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (load) temporary.copy_(tensor);
  kept_.push_back(tensor);
  copies_.emplace_back(tensor, temporary);
  return memory_of(temporary);
}

void Operands::copy_back() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (auto& [target, temporary] : copies_) target.copy_(temporary);
  if (staging_) staging_->copy_back();
}

std::vector<collectives::Segment> cut(collectives::Segment whole, const std::vector<std::int64_t>& numels,
                                      std::size_t element_bytes) {
  std::vector<collectives::Segment> parts;
  parts.reserve(numels.size());
  std::byte* next = whole.data;
  for (const std::int64_t numel : numels) {
    const auto bytes = static_cast<std::uint64_t>(numel) * element_bytes;
    parts.push_back({next, bytes});
    next += bytes;
  }
  return parts;
}

std::vector<collectives::Segment> cut_equally(collectives::Segment whole, int parts) {
  const std::uint64_t bytes = whole.bytes / static_cast<std::uint64_t>(parts);
  std::vector<collectives::Segment> segments;
  segments.reserve(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) segments.push_back({whole.data + static_cast<std::uint64_t>(i) * bytes, bytes});
  return segments;
}

}  // namespace atl::pytorch
