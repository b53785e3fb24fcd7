// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/arena.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/pytorch/aten/streams.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/process/by_device.h"

namespace atl::pytorch {
namespace {

std::size_t arena_budget() {
  if (environment("ATOLL_ARENA").empty()) {
    return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) / 4 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }
  const auto is_valid = [](std::uint64_t size) { return size == 0 || (size >= 16 && size <= std::uint64_t{1} << 30); };
  const auto mebibytes =
      number_setting("ATOLL_ARENA", std::uint64_t{0}, is_valid, "a whole number of mebibytes from 16 on, or 0");
  return mebibytes << 20;
}

void free_in_arena(void* data) {
  if (const auto arena = process_arena()) arena->free(data);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    std::string problem = "its budget is used up (ATOLL_ARENA)";
    try {
      const auto arena = process_arena();
      if (!arena) return c10::GetCPUAllocator()->allocate(bytes);
      void* const data = arena->allocate(bytes);
      if (data != nullptr) return {data, data, &free_in_arena, c10::Device(c10::kCPU)};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnavailable) throw_as_torch(error);
      problem = error.what();
    }
    TORCH_WARN_ONCE("atoll: the arena has no memory for ", bytes, " bytes: ", problem,
                    "; ordinary memory is used instead, which ranks on the same host must copy more often");
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

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

std::shared_ptr<transport::Arena> process_arena() {
  struct Known {
    std::uint32_t made_in;  // fork_depth()
    std::shared_ptr<transport::Arena> arena;
  };
  // Without a lock, which another thread might hold when this process forks.
  static std::atomic<const Known*> current{nullptr};
  const Known* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->made_in != fork_depth()) {
    const std::size_t budget = arena_budget();
    auto made = std::make_unique<const Known>(
        Known{fork_depth(), budget == 0 ? nullptr : std::make_shared<transport::Arena>(budget)});
    if (current.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) known = made.release();
  }
  return known->arena;
}

const std::shared_ptr<c10::Allocator>& arena_allocator() {
  static const auto& allocator = *new std::shared_ptr<c10::Allocator>(std::make_shared<ArenaAllocator>());
  return allocator;
}

at::Tensor empty_in_arena(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_generic(sizes, arena_allocator().get(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype,
                                   std::nullopt);
}

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
