// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/staging.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>

namespace atl::pytorch {
namespace {

c10::Stream pool_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

/// What runs on `stream` uses the tensor's memory, whoever frees it meanwhile.
void note_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (tensor.numel() == 0) return;
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

at::Tensor host_memory_for(const at::Tensor& tensor) {
  const auto options = tensor.options().device(c10::kCPU).memory_format(at::MemoryFormat::Contiguous);
  return at::empty(tensor.sizes(), options.pinned_memory(tensor.numel() > 0));
}

}  // namespace

CopyStreams::CopyStreams(c10::Device device)
    : device_(device), to_host_(pool_stream(device)), to_device_(pool_stream(device)) {}

std::shared_ptr<const CopyStreams> copy_streams(c10::Device device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<CopyStreams>>;
  const std::lock_guard lock(mutex);
  auto& streams = (*known)[{device.type(), device.index()}];
  if (!streams) streams = std::make_shared<CopyStreams>(device);
  return streams;
}

void Staging::use(const at::Tensor& tensor) {
  if (!streams_) streams_ = copy_streams(tensor.device());
  TORCH_CHECK_VALUE(streams_->device() == tensor.device(), "the tensors of one call must be on one device, got ",
                    streams_->device(), " and ", tensor.device());
}

at::Tensor Staging::load(const at::Tensor& tensor) {
  use(tensor);
  at::Tensor host = host_memory_for(tensor);
  loads_.emplace_back(tensor, host);
  return host;
}

at::Tensor Staging::store(const at::Tensor& tensor, bool load) {
  use(tensor);
  at::Tensor host = host_memory_for(tensor);
  stores_.emplace_back(tensor, host);
  if (load) loads_.emplace_back(tensor, host);
  return host;
}

void Staging::begin() {
  const c10::Stream current = current_stream(streams_->device());
  TORCH_CHECK(
      !c10::impl::VirtualGuardImpl(current.device_type()).isStreamCapturing(current),
      "a collective of the atoll backend cannot be captured into a graph: it crosses the host. Issue it outside the "
      "capture");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  begun_.emplace(streams_->device().type());
  begun_->record(current);
  if (loads_.empty()) return;
  const c10::Stream stream = streams_->to_host();
  begun_->block(stream);
  const c10::StreamGuard guard(stream);
  for (auto& [device, host] : loads_) {
    host.copy_(device, /*non_blocking=*/true);
    note_use(device, stream);
  }
  loaded_.emplace(streams_->device().type());
  loaded_->record(stream);
}

bool Staging::is_loaded() const { return !loaded_ || loaded_->query(); }

void Staging::copy_back() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream stream = streams_->to_device();
  begun_->block(stream);  // what reads the tensors' old values has been issued before
  const c10::StreamGuard guard(stream);
  for (auto& [device, host] : stores_) {
    device.copy_(host, /*non_blocking=*/true);
    note_use(device, stream);
  }
  arrived_.emplace(streams_->device().type());
  arrived_->record(stream);
}

void Staging::release() {
  loads_.clear();
  stores_.clear();
}

void Staging::wait_on_current_stream() const {
  if (arrived_) arrived_->block(current_stream(streams_->device()));
}

}  // namespace atl::pytorch
