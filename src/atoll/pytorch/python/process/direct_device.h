// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/process/device_threads.h"
#include "atoll/pytorch/python/process/in_order.h"
#include "atoll/pytorch/staging/staged_message.h"

namespace atl::pytorch {

/// Describes how a network accesses the memory of a type of device.
struct NetworkMemory {
  transport::MemoryKind kind = transport::MemoryKind::kHost;
  void* (*host_view)(const void* device) = nullptr;  ///< with kHost: returns the host address of the same bytes
};

/// Sets this for a type of device, once, before its first message. Networks cannot access other types. Thread-safe.
void set_network_memory(c10::DeviceType type, NetworkMemory memory);

/// Returns a contiguous tensor's memory as a network accesses it; nothing if networks cannot access its device.
std::optional<transport::DirectBuffer> network_buffer(const at::Tensor& tensor);

/// An accelerator of PyTorch's, for messages that do not pass through the host. Copies inside the device run on a
/// separate stream, and a thread polls for their completion. Thread-safe.
class DirectDevice final : public collectives::MessageDevice {
 public:
  DirectDevice(c10::Device device, std::weak_ptr<InOrder> ends);
  bool is_reached(const transport::DirectPort& port) const noexcept override;
  std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort& port, std::size_t bytes) override;
  c10::Stream stream() const noexcept { return stream_; }

 private:
  class Ring;
  const c10::Device device_;
  const c10::Stream stream_;           // carries only these copies
  const std::weak_ptr<InOrder> ends_;  // polls for completed copies
};

/// The direct devices of this process. Thread-safe.
class DirectDevices {
 public:
  /// Throws c10::Error when the device has no streams or events.
  std::shared_ptr<DirectDevice> get(c10::Device device);

  /// Stops the thread, once no copies are issued any more.
  void stop() { ends_->stop(); }

 private:
  const std::shared_ptr<InOrder> ends_ = std::make_shared<InOrder>("atoll-direct", prepare_thread);
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<DirectDevice>> devices_;
};

/// The landing of a message that an accelerator receives: the tensor's memory, a temporary on the device while the
/// caller's stream is not ready, or host memory.
class DeviceLanding final : public collectives::Landing {
 public:
  /// `memory`: of the operation's operands. `clock` times copies between the device and the host.
  DeviceLanding(std::shared_ptr<StagedOperation> operation, collectives::Segment memory,
                std::shared_ptr<DirectDevice> device, std::shared_ptr<StagingClock> clock);

  const std::shared_ptr<collectives::MessageDevice>& device() const noexcept override { return device_; }
  std::byte* on_device() override;
  std::byte* on_host() override;
  void arrived(std::uint64_t bytes) override { staged_->arrived(bytes); }

  /// Issues the remaining copies, once the message has arrived.
  void store();

 private:
  const std::shared_ptr<StagedOperation> operation_;
  const collectives::Segment memory_;
  const std::shared_ptr<collectives::MessageDevice> device_;
  const c10::Stream stream_;
  const std::shared_ptr<StagingClock> clock_;
  at::Tensor beside_;
  std::optional<StagedMessage> staged_;  // if it passes through the host
};

}  // namespace atl::pytorch
