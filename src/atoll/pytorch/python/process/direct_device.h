// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/process/in_order.h"
#include "atoll/pytorch/staging/staged_message.h"

namespace atl::pytorch {

/// How networks find the memory of a type of device.
struct NetworkMemory {
  transport::MemoryKind kind = transport::MemoryKind::kHost;
  void* (*host_view)(const void* device) = nullptr;  ///< with kHost: where the same bytes can be touched
};

/// Said once for a type of device, before its first message; of the others networks know nothing. Thread-safe.
void set_network_memory(c10::DeviceType type, NetworkMemory memory);

/// All of a contiguous tensor, as networks find it; nothing where they know nothing of its device.
std::optional<transport::DirectBuffer> network_buffer(const at::Tensor& tensor);

/// One accelerator of PyTorch's, for messages that do not pass the host: copies inside it run on a stream of their own, and a
/// thread asks for their ends. Thread-safe.
class DirectDevice final : public collectives::MessageDevice {
 public:
  DirectDevice(c10::Device device, std::weak_ptr<InOrder> ends);
  bool is_reached(const transport::DirectPort& port) const noexcept override;
  std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort& port, std::size_t bytes) override;
  c10::Stream stream() const noexcept { return stream_; }

 private:
  class Ring;
  const c10::Device device_;
  const c10::Stream stream_;           // waits for nothing but its own copies
  const std::weak_ptr<InOrder> ends_;  // of copies
};

/// Those of this process.
class DirectDevices {
 public:
  /// Throws c10::Error when the device has no streams or events.
  std::shared_ptr<DirectDevice> get(c10::Device device);

  /// Nobody copies any more.
  void stop() { ends_->stop(); }

 private:
  const std::shared_ptr<InOrder> ends_ = std::make_shared<InOrder>("atoll-direct");
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<DirectDevice>> devices_;
};

/// Where a message comes to that an accelerator receives: straight into the tensor's memory, or beside it while the caller's
/// stream is not yet there, or into the host's.
class DeviceLanding final : public collectives::Landing {
 public:
  /// `memory`: of the trip's operands. `clock` times copies between the device and the host.
  DeviceLanding(std::shared_ptr<Trip> trip, collectives::Segment memory, std::shared_ptr<DirectDevice> device,
                std::shared_ptr<StagingClock> clock);

  const std::shared_ptr<collectives::MessageDevice>& device() const noexcept override { return device_; }
  std::byte* on_device() override;
  std::byte* on_host() override;
  void arrived(std::uint64_t bytes) override { staged_->arrived(bytes); }

  /// The message has come: issues the rest of its way.
  void store();

 private:
  const std::shared_ptr<Trip> trip_;
  const collectives::Segment memory_;
  const std::shared_ptr<collectives::MessageDevice> device_;
  const c10::Stream stream_;
  const std::shared_ptr<StagingClock> clock_;
  at::Tensor beside_;
  std::optional<StagedMessage> staged_;  // by way of the host
};

}  // namespace atl::pytorch
