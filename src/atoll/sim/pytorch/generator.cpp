// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <mutex>

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
