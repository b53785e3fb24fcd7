// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/peer_arena.h"

#include <sys/mman.h>

#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMaxSlabs = 16384;
constexpr std::uint64_t kMaxSlabBytes = std::uint64_t{1} << 40;

}  // namespace

void PeerArena::add(std::uint32_t slab, const Fd& memory, std::uint64_t bytes) {
  check_sealed_memfd(memory, bytes);
  if (bytes < sizeof(ArenaSlabHeader) || bytes > kMaxSlabBytes)
    throw Error(ErrorKind::kProtocol, "a slab of " + std::to_string(bytes) + " bytes in the peer's arena");
  const std::lock_guard lock(mutex_);
  if (slabs_.size() >= kMaxSlabs || slabs_.contains(slab)) {
    throw Error(ErrorKind::kProtocol, "slab " + std::to_string(slab) + " of the peer's arena came twice, or is " +
                                          "one of more than " + std::to_string(kMaxSlabs));
  }
  void* const mapped = map_shared(memory, bytes, std::to_string(bytes) + " bytes of a peer's arena");
  ::madvise(mapped, bytes, MADV_DONTFORK);
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  slabs_[slab] = {Mapping(static_cast<std::byte*>(mapped), Unmap{bytes}), bytes};
}

PeerArena::Mapping PeerArena::find(const ArenaPlace& place, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = slabs_.find(place.slab);
  if (found == slabs_.end()) return nullptr;
  const Slab& slab = found->second;
  if (bytes > slab.bytes || place.offset > slab.bytes - bytes) {
    throw Error(ErrorKind::kProtocol,
                std::to_string(bytes) + " bytes at " + std::to_string(place.offset) + " are outside the peer's arena");
  }
  return {slab.base, slab.base.get() + place.offset};
}

// Unmapping takes long; it is done without the lock, for which readers wait.
void PeerArena::drop_retired() noexcept {
  std::map<std::uint32_t, Slab> dropped;
  const std::lock_guard lock(mutex_);
  for (auto at = slabs_.begin(); at != slabs_.end();) {
    const auto slab = at++;
    const auto* const header = reinterpret_cast<const ArenaSlabHeader*>(slab->second.base.get());
    if (header->is_retired.load(std::memory_order_acquire) != 0) dropped.insert(slabs_.extract(slab));
  }
}

void PeerArena::clear() noexcept {
  std::map<std::uint32_t, Slab> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(slabs_);
}

}  // namespace atl::transport
