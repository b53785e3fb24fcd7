// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "atoll/core/error.h"

namespace atl::sim {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReturnFrom = std::size_t{1} << 20;     // smaller ranges keep their pages
constexpr std::size_t kCheckInterval = std::size_t{1} << 20;  // released bytes
constexpr int kPoison = 0xEE;

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::string in_mib(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

void DeviceMemory::Unmap::operator()(std::byte* address) const noexcept { ::munmap(address, bytes); }

DeviceMemory::Mapping DeviceMemory::map(int protection) const {
  void* const at = ::mmap(nullptr, capacity_, protection, MAP_SHARED | MAP_NORESERVE, memory_.get(), 0);
  if (at == MAP_FAILED) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("cannot map the memory of a simulated device of " + in_mib(capacity_), errno));
  }
  ::madvise(at, capacity_, MADV_DONTFORK);
  return Mapping(static_cast<std::byte*>(at), Unmap{capacity_});
}

DeviceMemory::DeviceMemory(std::size_t capacity)
    : capacity_(round_up(std::max<std::size_t>(capacity, 1), kPage)),
      memory_(::memfd_create("atoll-sim", MFD_CLOEXEC)) {
  if (!memory_ || ::ftruncate(memory_.get(), static_cast<off_t>(capacity_)) != 0) {
    throw Error(ErrorKind::kUnavailable,
                with_errno("cannot make the memory of a simulated device of " + in_mib(capacity_), errno));
  }
  device_ = map(PROT_NONE);
  host_ = map(PROT_READ | PROT_WRITE);
  free_[0] = capacity_;
  stats_.capacity = capacity_;
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), kMemoryAlignment);
  const std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second >= wanted && (best == free_.end() || range->second < best->second)) best = range;
  }
  if (best == free_.end()) {
    throw Error(ErrorKind::kUnavailable, "the simulated device is out of memory: " + std::to_string(bytes) +
                                             " bytes wanted, " + in_mib(stats_.held) + " of " + in_mib(capacity_) +
                                             " in use (ATOLL_SIM_MEMORY sets its size)");
  }
  const std::size_t offset = best->first;
  const std::size_t rest = best->second - wanted;
  free_.erase(best);
  if (rest > 0) free_[offset + wanted] = rest;
  used_[offset] = {wanted, false};
  stats_.held += wanted;
  stats_.allocated += wanted;
  stats_.peak = std::max(stats_.peak, stats_.allocated);
  return device_.get() + offset;
}

void DeviceMemory::retire(void* device) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(offset_of(device));
  if (found == used_.end() || found->second.is_retired) return;
  found->second.is_retired = true;
  stats_.allocated -= found->second.bytes;
}

void DeviceMemory::release(void* device) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(offset_of(device));
  if (found == used_.end()) return;
  const std::size_t offset = found->first;
  std::size_t bytes = found->second.bytes;
  if (!found->second.is_retired) stats_.allocated -= bytes;
  stats_.held -= bytes;
  used_.erase(found);
  if (bytes >= kReturnFrom) {
    give_back_pages(offset, bytes);
    std::memset(host_.get() + offset, kPoison, kPage);
  } else {
    std::memset(host_.get() + offset, kPoison, bytes);
  }
  released_ += bytes;
  add_free(offset, bytes);
  if (released_ >= kCheckInterval) {
    released_ = 0;
    if (keeps_too_much()) give_back_free_pages();
  }
}

void DeviceMemory::give_back_pages(std::size_t offset, std::size_t bytes) noexcept {
  const std::size_t first = round_up(offset, kPage);
  const std::size_t end = (offset + bytes) / kPage * kPage;
  if (first >= end) return;
  ::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(end - first));
}

bool DeviceMemory::keeps_too_much() const noexcept {
  struct stat file {};
  return ::fstat(memory_.get(), &file) == 0 && static_cast<std::size_t>(file.st_blocks) * 512 > stats_.held + kMaxKept;
}

void DeviceMemory::give_back_free_pages() noexcept {
  for (const auto& [offset, bytes] : free_) give_back_pages(offset, bytes);
}

void DeviceMemory::add_free(std::size_t offset, std::size_t bytes) noexcept {
  const auto after = free_.find(offset + bytes);
  if (after != free_.end()) {
    bytes += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

}  // namespace atl::sim
