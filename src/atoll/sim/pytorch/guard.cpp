// SPDX-License-Identifier: Apache-2.0
// Devices, streams and events for c10's generic code.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

c10::Stream as_stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), id);
}

Event* event_of(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }

  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    set_current_device(to.index());
    return before;
  }
  c10::Device getDevice() const override { return {kSim, current_device()}; }
  void setDevice(c10::Device to) const override { set_current_device(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0 && to.index() < deviceCount()) reset_current_device(to.index());
  }
  // PyTorch allows no exception here; using a device throws.
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (const c10::Error&) {
      return 0;
    }
  }

  c10::Stream getStream(c10::Device of) const noexcept override { return current_stream(of.index()); }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return as_stream(of.index() < 0 ? current_device() : of.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*high_priority*/) const override {
    const auto index = of.index() < 0 ? current_device() : of.index();
    return as_stream(index, device(index).pool_stream());
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override {
    const auto index = of.index() < 0 ? current_device() : of.index();
    return as_stream(index, device(index).new_stream());
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return set_current_stream(to); }
  // Not marked as an override, because PyTorch 2.11 does not declare it.
  virtual bool isStreamCapturing(const c10::Stream&) const { return is_capturing(); }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { device(index).synchronize(); }

  // Switches to the stream's device and back, as CUDA's does.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    require_working();
    const c10::DeviceIndex before = current_device();
    set_current_device(stream.device_index());
    if (*event == nullptr) *event = new Event;
    *event_of(*event) = stream_of(stream).record();
    set_current_device(before);
  }
  void block(void* event, const c10::Stream& stream) const override {
    require_working();
    if (event != nullptr) stream_of(stream).wait_for(*event_of(event));
  }
  bool queryEvent(void* event) const override {
    require_working();
    note_query();
    return event == nullptr || event_of(event)->is_reached();
  }
  void synchronizeEvent(void* event) const override {
    require_working();
    if (event != nullptr) event_of(event)->wait();
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr && queryEvent(first) && queryEvent(second),
                "sim: elapsed time is known between two events that were recorded and reached");
    return std::chrono::duration<double, std::milli>(event_of(second)->when() - event_of(first)->when()).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete event_of(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    note_use(data, stream);
  }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kSim, new Guard);

}  // namespace
}  // namespace atl::sim
