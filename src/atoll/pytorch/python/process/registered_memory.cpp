// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/registered_memory.h"

#include <c10/core/DeviceGuard.h>

#include <string>

#include "atoll/core/error.h"
#include "atoll/core/log.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/process/arena.h"
#include "atoll/pytorch/python/process/by_device.h"

namespace atl::pytorch {
namespace {

constexpr unsigned kForAllContexts = 1;  // cudaHostRegisterPortable, hipHostRegisterPortable

ByDevice<HostRegistrar>& registrars() {
  static auto* const known = new ByDevice<HostRegistrar>;
  return *known;
}

bool is_removed(const HostRegistrar& registrar, c10::Device device, void* memory) noexcept {
  try {
    const c10::DeviceGuard guard(device);
    if (registrar.remove(memory) == 0) return true;
    if (registrar.clear_error != nullptr) registrar.clear_error();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, std::string("host memory of a device was not released: ") + error.what());
  }
  return false;
}

// Returns an undefined tensor where the arena or the runtime has no room.
at::Tensor registered_in_arena(std::uint64_t bytes, c10::Device device, const HostRegistrar& registrar) {
  const auto arena = process_arena();
  void* const memory = arena ? arena->allocate(bytes) : nullptr;
  if (memory == nullptr) return {};
  const c10::DeviceGuard guard(device);
  if (registrar.add(memory, bytes, kForAllContexts) != 0) {
    if (registrar.clear_error != nullptr) registrar.clear_error();
    arena->free(memory);
    log(LogLevel::kWarning, "the runtime of " + device.str() +
                                " has not registered host memory: ranks of this host copy what passes from devices");
    set_host_registrar(device.type(), {});  // it is not asked again
    return {};
  }
  const auto give_back = [arena, registrar, device](void* data) {
    if (is_removed(registrar, device, data))
      arena->free(data);  // else the device may still use it: it is not used again
  };
  return at::from_blob(memory, {static_cast<std::int64_t>(bytes)}, give_back, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

void set_host_registrar(c10::DeviceType device, HostRegistrar registrar) { registrars().set(device, registrar); }

at::Tensor staging_memory(std::uint64_t bytes, c10::Device device) {
  if (bytes == 0) return pinned_memory(bytes, device);
  if (device.is_cpu()) return empty_in_arena({static_cast<std::int64_t>(bytes)}, at::kByte);
  if (const auto registrar = registrars().find(device.type()); registrar && registrar->add != nullptr) {
    try {
      const at::Tensor memory = registered_in_arena(bytes, device, *registrar);
      if (memory.defined()) return memory;
    } catch (const Error&) {  // the system has no descriptor or mapping left: pinned memory needs neither
    }
  }
  return pinned_memory(bytes, device);
}

}  // namespace atl::pytorch
