// SPDX-License-Identifier: Apache-2.0
// Devices, streams and events for c10's generic code, and what PyTorch needs of a device type as a whole.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>

#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

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
  c10::Stream getDefaultStream(c10::Device of) const override { return as_stream(of.index(), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*high_priority*/) const override {
    return as_stream(of.index(), device(of.index()).pool_stream());
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override {
    return as_stream(of.index(), device(of.index()).new_stream());
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

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  void init() const override { device(-1); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (device(index).memory().contains(data)) return {kSim, index};
    }
    TORCH_CHECK(false, "the address does not belong to a simulated device");
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

class SimGenerator final : public c10::GeneratorImpl {
 public:
  SimGenerator(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(c10::Device(kSim, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  const at::Generator& host() const { return host_; }

  void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { host_.set_offset(offset); }
  std::uint64_t get_offset() const override { return host_.get_offset(); }
  std::uint64_t current_seed() const override { return host_.current_seed(); }
  std::uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }

 private:
  SimGenerator* clone_impl() const override { return new SimGenerator(device_.index(), host_.clone()); }

  mutable at::Generator host_;
};

const c10::impl::DeviceGuardImplRegistrar registrar(kSim, new Guard);

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // never destroyed: PyTorch keeps the pointer
  return true;
}();

}  // namespace

at::Generator new_generator(c10::DeviceIndex index) {
  if (index < 0) index = current_device();
  return at::Generator(c10::make_intrusive<SimGenerator>(index, at::detail::createCPUGenerator()));
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::mutex mutex;
  static auto* const all = new std::map<c10::DeviceIndex, at::Generator>;
  if (index < 0) index = current_device();
  const std::lock_guard lock(mutex);
  at::Generator& known = (*all)[index];
  if (!known.defined()) known = new_generator(index);
  return known;
}

at::Generator host_generator(const at::Generator& generator) {
  return static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

}  // namespace atl::sim
