// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/direct_device.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <atomic>
#include <utility>

#include "atoll/pytorch/python/process/by_device.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {
namespace {

ByDevice<NetworkMemory>& network_memory() {
  static auto* const known = new ByDevice<NetworkMemory>;
  return *known;
}

at::TensorOptions bytes_on(c10::Device device) { return at::TensorOptions().dtype(at::kByte).device(device); }

}  // namespace

void set_network_memory(c10::DeviceType type, NetworkMemory memory) { network_memory().set(type, memory); }

std::optional<transport::DirectBuffer> network_buffer(const at::Tensor& tensor) {
  const std::optional<NetworkMemory> memory =
      tensor.is_cpu() ? NetworkMemory{} : network_memory().find(tensor.device().type());
  if (!memory) return std::nullopt;
  void* const data = tensor.data_ptr();
  return transport::DirectBuffer{memory->host_view ? memory->host_view(data) : data, tensor.nbytes(), memory->kind};
}

/// Ring memory on the device, or on the host if the network cannot access the device.
class DirectDevice::Ring final : public transport::RingMemory, public std::enable_shared_from_this<Ring> {
 public:
  Ring(const DirectDevice& of, at::Tensor memory, transport::DirectBuffer buffer)
      : device_(of.device_), stream_(of.stream()), ends_(of.ends_), memory_(std::move(memory)), buffer_(buffer) {}

  transport::DirectBuffer buffer() const noexcept override { return buffer_; }

  void copy(void* to, const void* from, std::size_t bytes, Copied copied) override {
    try {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      const c10::StreamGuard guard(stream_);
      bytes_at(to, bytes).copy_(bytes_at(const_cast<void*>(from), bytes), /*non_blocking=*/true);
      const auto end = std::make_shared<c10::Event>(device_.type());
      end->record(stream_);
      const auto ends = ends_.lock();
      if (!ends) throw Error(ErrorKind::kAborted, "the process is exiting");
      const auto self = shared_from_this();
      ends->post(
          {this, 0, 0}, [self, end] { return self->given_up_ || self->is_over(*end); },
          [self, end, copied] { self->complete(*end, copied); });
    } catch (const Error& error) {
      copied(&error);
    } catch (const std::exception& error) {
      const Error problem(ErrorKind::kUnavailable, "a copy inside the device failed: " + plain_text(error));
      copied(&problem);
    }
  }

  void give_up() noexcept override { given_up_ = true; }

 private:
  at::Tensor bytes_at(void* address, std::size_t bytes) const {
    const auto count = static_cast<std::int64_t>(bytes);
    auto* const at = static_cast<std::byte*>(address);
    auto* const begin = static_cast<std::byte*>(buffer_.data);
    if (at >= begin && at < begin + buffer_.bytes) return memory_.narrow(0, at - begin, count);
    return at::for_blob(address, {count}).options(bytes_on(device_)).target_device(device_).make_tensor();
  }

  static bool is_over(const c10::Event& end) noexcept {
    try {
      return end.query();
    } catch (const std::exception&) {
      return true;  // complete() reports it
    }
  }

  void complete(const c10::Event& end, const Copied& copied) const {
    std::optional<Error> problem;
    try {
      if (!end.query()) problem.emplace(ErrorKind::kAborted, "the copy was given up");
    } catch (const std::exception& error) {
      problem.emplace(ErrorKind::kUnavailable, "a copy inside the device failed: " + plain_text(error));
    }
    copied(problem ? &*problem : nullptr);
  }

  const c10::Device device_;
  const c10::Stream stream_;
  const std::weak_ptr<InOrder> ends_;
  const at::Tensor memory_;  // bytes
  const transport::DirectBuffer buffer_;
  std::atomic<bool> given_up_{false};
};

DirectDevice::DirectDevice(c10::Device device, std::weak_ptr<InOrder> ends)
    : device_(device), stream_(pool_stream(device)), ends_(std::move(ends)) {}

bool DirectDevice::is_reached(const transport::DirectPort& port) const noexcept {
  const auto memory = network_memory().find(device_.type());
  return memory && port.reaches(memory->kind);
}

std::shared_ptr<transport::RingMemory> DirectDevice::new_ring(const transport::DirectPort& port, std::size_t bytes) {
  const c10::StreamGuard guard(stream());
  const at::Tensor memory = is_reached(port) ? at::empty({static_cast<std::int64_t>(bytes)}, bytes_on(device_))
                                             : pinned_memory(bytes, device_);
  return std::make_shared<Ring>(*this, memory, *network_buffer(memory));
}

std::shared_ptr<DirectDevice> DirectDevices::get(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& known_device = devices_[{device.type(), device.index()}];
  if (!known_device) known_device = std::make_shared<DirectDevice>(device, ends_);
  return known_device;
}

DeviceLanding::DeviceLanding(std::shared_ptr<StagedOperation> operation, collectives::Segment memory,
                             std::shared_ptr<DirectDevice> device, std::shared_ptr<StagingClock> clock)
    : operation_(std::move(operation)),
      memory_(memory),
      device_(device),
      stream_(device->stream()),
      clock_(std::move(clock)) {}

// A ring serves many messages, so its copies must not wait for the caller's stream.
std::byte* DeviceLanding::on_device() {
  if (operation_->caller_is_ready()) {
    for (const at::Tensor& tensor : operation_->operands().tensors()) note_use(tensor, stream_);
    return memory_.data;
  }
  const c10::StreamGuard guard(stream_);
  beside_ = at::empty({static_cast<std::int64_t>(memory_.bytes)}, bytes_on(operation_->device()));
  return static_cast<std::byte*>(beside_.data_ptr());
}

std::byte* DeviceLanding::on_host() { return staged_.emplace(operation_, memory_, clock_).on_host(); }

void DeviceLanding::store() {
  if (staged_) return staged_->store();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::Stream to_device = operation_->streams().to_device();
  const c10::StreamGuard guard(to_device);
  operation_->follow_caller(to_device);
  if (beside_.defined()) {
    operation_->operands().bytes_of(memory_).copy_(beside_, /*non_blocking=*/true);
    note_use(beside_, to_device);
  }
  operation_->chunk_stored();
}

}  // namespace atl::pytorch
