// SPDX-License-Identifier: Apache-2.0
// What PyTorch needs of a device type as a whole.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "atoll/sim/pytorch/allocator.h"
#include "atoll/sim/pytorch/generator.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

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

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // never destroyed: PyTorch keeps the pointer
  return true;
}();

}  // namespace
}  // namespace atl::sim
