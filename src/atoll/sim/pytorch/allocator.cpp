// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/pytorch/allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <unordered_map>

#include "atoll/core/error.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {
namespace {

struct Block {
  void* address;
  c10::DeviceIndex index;
  std::mutex mutex;
  std::vector<c10::Stream> users;  // the stream of the allocation comes first
};

/// Blocks that were freed but may still be in use; thousands of them if the host is far ahead of its device.
class Retired {
 public:
  void add(Block* block) {
    device(block->index).memory().retire(block->address);
    Entry entry{block, {}};
    for (const c10::Stream& user : block->users) entry.events.push_back(stream_of(user).record());
    const std::lock_guard lock(mutex_);
    (block->users.size() == 1 ? by_stream_[block->users.front()] : of_several_).push_back(std::move(entry));
    collect_locked();
  }
  void collect() {
    const std::lock_guard lock(mutex_);
    collect_locked();
  }

 private:
  struct Entry {
    Block* block;
    std::vector<Event> events;

    bool is_free() const {
      return std::all_of(events.begin(), events.end(), [](const Event& event) { return event.is_reached(); });
    }
    void release() const {
      device(block->index).memory().release(block->address);
      delete block;
    }
  };
  void collect_locked() {
    for (auto& [stream, entries] : by_stream_) {
      for (; !entries.empty() && entries.front().is_free(); entries.pop_front()) entries.front().release();
    }
    for (auto entry = of_several_.begin(); entry != of_several_.end();) {
      const bool is_free = entry->is_free();
      if (is_free) entry->release();
      entry = is_free ? of_several_.erase(entry) : std::next(entry);
    }
  }
  std::mutex mutex_;
  std::unordered_map<c10::Stream, std::deque<Entry>> by_stream_;  // each stream reaches its events in order
  std::deque<Entry> of_several_;
};

Retired& retired() {
  static auto* const blocks = new Retired;
  return *blocks;
}

void free_block(void* context) {
  try {
    retired().add(static_cast<Block*>(context));
  } catch (const std::exception&) {
    // A forked child frees a block of its parent; there is nothing to do.
  }
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto index = current_device();
    const c10::Device place(kSim, index);
    if (bytes == 0) return {nullptr, nullptr, &free_nothing, place};
    retired().collect();
    void* const address = allocate_or_wait(device(index), bytes);
    auto* const block = new Block{address, index, {}, {current_stream(index)}};
    return {address, block, &free_block, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    DeviceMemory& memory = device(current_device()).memory();
    run_untimed(-1, [&] { std::memcpy(memory.host_view(to), memory.host_view(from), bytes); });
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    retired().collect();
    empty_caches();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { note_use(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const MemoryStats now = device(index).memory().stats();
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[kAll].current = static_cast<std::int64_t>(now.allocated);
    stats.allocated_bytes[kAll].peak = static_cast<std::int64_t>(now.peak);
    for (auto* each : {&stats.reserved_bytes, &stats.active_bytes}) {
      (*each)[kAll].current = static_cast<std::int64_t>(now.held);
      (*each)[kAll].peak = static_cast<std::int64_t>(std::max(now.held, now.peak));
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override { device(index).memory().reset_peak(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const MemoryStats now = device(index).memory().stats();
    return {now.capacity - now.held, now.capacity};
  }

 private:
  static void free_nothing(void*) {}

  static void* allocate_or_wait(Device& device, std::size_t bytes) {
    try {
      return device.memory().allocate(bytes);
    } catch (const Error&) {
      device.synchronize();  // frees blocks that were still in use
      retired().collect();
    }
    try {
      return device.memory().allocate(bytes);
    } catch (const Error& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    }
  }
};

/// Pinned memory by address.
struct PinnedRanges {
  struct Range {
    std::size_t bytes;
    std::shared_ptr<void> memory;
  };
  std::mutex mutex;
  std::map<const std::byte*, Range> ranges;
};
PinnedRanges& pinned() {
  static auto* const all = new PinnedRanges;
  return *all;
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    constexpr std::size_t kPage = 4096;
    void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "cannot allocate ", bytes, " bytes of pinned host memory");
    const std::lock_guard lock(pinned().mutex);
    pinned().ranges[static_cast<const std::byte*>(memory)] = {bytes, {memory, &std::free}};
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  // A copy under way keeps the memory alive, so no event is needed.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static void release(void* memory) {
    const std::lock_guard lock(pinned().mutex);
    pinned().ranges.erase(static_cast<const std::byte*>(memory));
  }
};

SimAllocator the_device_allocator;
PinnedAllocator the_pinned_allocator;

REGISTER_ALLOCATOR(kSim, &the_device_allocator)
REGISTER_HOST_ALLOCATOR(kSim, &the_pinned_allocator)

}  // namespace

c10::Allocator* device_allocator() { return &the_device_allocator; }
c10::Allocator* pinned_allocator() { return &the_pinned_allocator; }

std::shared_ptr<void> pinned_memory(const void* address) noexcept {
  const auto* const byte = static_cast<const std::byte*>(address);
  const std::lock_guard lock(pinned().mutex);
  auto range = pinned().ranges.upper_bound(byte);
  if (range == pinned().ranges.begin()) return nullptr;
  --range;
  return byte < range->first + range->second.bytes ? range->second.memory : nullptr;
}

int register_host_memory(void* memory, std::size_t bytes, unsigned /*flags*/) noexcept {
  const std::lock_guard lock(pinned().mutex);
  const auto nothing_to_free = [](void*) {};
  const auto* const begin = static_cast<const std::byte*>(memory);
  const PinnedRanges::Range range{bytes, {memory, nothing_to_free}};
  return pinned().ranges.emplace(begin, range).second ? 0 : 1;
}

int unregister_host_memory(void* memory) noexcept {
  const std::lock_guard lock(pinned().mutex);
  return pinned().ranges.erase(static_cast<const std::byte*>(memory)) == 1 ? 0 : 1;
}

bool is_pinned(const void* address) noexcept { return pinned_memory(address) != nullptr; }

void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  const c10::impl::VirtualGuardImpl guard(kSim);
  const c10::Device before = guard.exchangeDevice(storage.device());
  c10::DataPtr larger = device_allocator()->allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) device_allocator()->copy_data(larger.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(larger));
  storage.set_nbytes(bytes);
  guard.setDevice(before);
}

void note_use(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != &free_block) return;
  auto* const block = static_cast<Block*>(data.get_context());
  const std::lock_guard lock(block->mutex);
  if (std::find(block->users.begin(), block->users.end(), stream) == block->users.end()) block->users.push_back(stream);
}

}  // namespace atl::sim
