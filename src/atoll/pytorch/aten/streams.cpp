// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/streams.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <map>
#include <thread>

namespace atl::pytorch {
namespace {

// PyTorch 2.11 has no query for this: there a capture ends with the vendor's error when the first event is queried.
template <class Guard>
bool is_capturing_on(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

c10::Stream pool_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

CopyStreams::CopyStreams(c10::Device device)
    : device_(device),
      in_(pool_stream(device)),
      to_host_(pool_stream(device)),
      to_device_(pool_stream(device)),
      out_(pool_stream(device)) {}

c10::Stream CopyStreams::messages() const {
  std::call_once(messages_once_, [this] { messages_ = pool_stream(device_); });
  return *messages_;
}

std::shared_ptr<const CopyStreams> copy_streams(c10::Device device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<CopyStreams>>;
  const std::lock_guard lock(mutex);
  auto& streams = (*known)[{device.type(), device.index()}];
  if (!streams) streams = std::make_shared<CopyStreams>(device);
  return streams;
}

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

bool wait_for(c10::Device device, Deadline until) {
  constexpr std::chrono::microseconds kDevicePollInterval{50};
  if (device.is_cpu()) return true;
  const c10::Stream stream = current_stream(device);
  if (until.is_never()) {
    stream.synchronize();
    return true;
  }
  c10::Event reached(device.type());
  reached.record(stream);
  while (!reached.query()) {
    if (until.expired()) return false;
    std::this_thread::sleep_for(kDevicePollInterval);
  }
  return true;
}

void refuse_capture(c10::Device device) {
  if (device.is_cpu()) return;
  TORCH_CHECK(!is_capturing_on(c10::impl::VirtualGuardImpl(device.type()), current_stream(device)),
              "a collective of the atoll backend cannot be captured into a graph, which cannot record what happens "
              "between ranks. Issue it outside the capture");
}

void note_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (tensor.numel() == 0) return;
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

at::Tensor pinned_memory(std::uint64_t bytes, c10::Device device) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(c10::kCPU);
  return at::empty({static_cast<std::int64_t>(bytes)}, options.pinned_memory(!device.is_cpu() && bytes > 0));
}

}  // namespace atl::pytorch
