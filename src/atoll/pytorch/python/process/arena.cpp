// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/process/arena.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

std::size_t arena_budget() {
  if (environment("ATOLL_ARENA").empty()) {
    return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) / 4 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }
  const auto is_valid = [](std::uint64_t size) { return size == 0 || (size >= 16 && size <= std::uint64_t{1} << 30); };
  const auto mebibytes = number_setting("ATOLL_ARENA", std::uint64_t{0}, is_valid,
                                        "a whole number of mebibytes from 16 on, or 0");
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

}  // namespace atl::pytorch
