// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <map>
#include <mutex>

#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

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
    TORCH_CHECK(false, "an address that belongs to no simulated device");
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

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
