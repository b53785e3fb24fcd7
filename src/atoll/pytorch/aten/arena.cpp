// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/arena.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace atl::pytorch {
namespace {

constexpr std::size_t kMin = 4096;   // malloc keeps smaller blocks itself
constexpr std::size_t kStep = 4096;  // blocks of nearly the same size are interchangeable

thread_local int scopes = 0;

// Idle blocks, by size. They come from PyTorch's own allocator, which can free each of them.
class Blocks {
 public:
  // Returns a kept block of at least `bytes` and not much more; null if there is none.
  void* try_take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.lower_bound(bytes);
    if (found == blocks_.end() || found->first > bytes + bytes / 4 + kStep) return nullptr;
    void* const block = found->second;
    bytes_ -= found->first;
    blocks_.erase(found);
    return block;
  }
  // Returns false if the arena would grow too large.
  bool try_keep(void* block) {
    const std::size_t bytes = malloc_usable_size(block);
    const std::lock_guard lock(mutex_);
    if (bytes_ + bytes > kMaxArenaBytes) return false;
    blocks_.emplace(bytes, block);
    bytes_ += bytes;
    return true;
  }
  std::vector<void*> take_all() {
    const std::lock_guard lock(mutex_);
    std::vector<void*> all;
    for (const auto& [bytes, block] : blocks_) all.push_back(block);
    blocks_.clear();
    bytes_ = 0;
    return all;
  }
  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, void*> blocks_;
  std::size_t bytes_ = 0;
};

// Never destroyed: tensors are freed until the process ends.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

void free_block(void* block) { c10::GetDefaultCPUAllocator()->raw_deleter()(block); }

void release(void* block) {
  bool is_kept = false;
  try {
    is_kept = blocks().try_keep(block);
  } catch (const std::bad_alloc&) {  // the block cannot be recorded
  }
  if (!is_kept) free_block(block);
}

class Arena final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::Allocator& own = *c10::GetDefaultCPUAllocator();
    if (scopes == 0 || bytes < kMin) return own.allocate(bytes);
    const std::size_t rounded = (bytes + kStep - 1) / kStep * kStep;
    void* block = blocks().try_take(rounded);
    if (block == nullptr) block = own.raw_allocate(rounded);
    // The block is its own context, as with PyTorch's allocator, whose raw_deleter frees it too.
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void install() {
  static Arena arena;
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&arena, /*priority=*/1);
}

}  // namespace

ArenaScope::ArenaScope() noexcept {
  static std::once_flag once;
  if (scopes++ == 0) std::call_once(once, install);
}

ArenaScope::~ArenaScope() { --scopes; }

std::size_t arena_bytes() { return blocks().bytes(); }

void empty_arena() {
  for (void* const block : blocks().take_all()) free_block(block);
}

}  // namespace atl::pytorch
