// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMinSlab = std::size_t{16} << 20;
constexpr std::size_t kMaxUsualSlab = std::size_t{1} << 30;
constexpr std::size_t kSlabUnit = std::size_t{2} << 20;  // of huge pages
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;
constexpr std::size_t kCacheLine = 64;

// Of a peer's arena.
constexpr std::size_t kMaxSlabs = 16384;
constexpr std::uint64_t kMaxSlabBytes = std::uint64_t{1} << 40;

/// Rounds up to where an allocation of `bytes` may begin or end.
std::size_t aligned(std::size_t offset, std::size_t bytes) {
  return round_up(offset, bytes < page_bytes() ? kCacheLine : page_bytes());
}

}  // namespace

/// One memfd, mapped for writing here: a page for the header, then memory that is cut into allocations.
class Arena::Slab {
 public:
  Slab(std::uint32_t id, std::size_t bytes)
      : id_(id),
        memory_(make_sealed_memfd("atoll-arena", bytes)),
        bytes_(bytes),
        base_(static_cast<std::byte*>(map_shared(memory_, bytes, std::to_string(bytes) + " bytes of an arena")),
              Unmap{bytes}) {
    ::madvise(base_.get(), bytes, MADV_HUGEPAGE);  // where the system allows it
    new (base_.get()) ArenaSlabHeader;
    free_[page_bytes()] = bytes - page_bytes();
  }
  ~Slab() { reinterpret_cast<ArenaSlabHeader*>(base_.get())->is_retired.store(1, std::memory_order_release); }

  std::uint32_t id() const noexcept { return id_; }
  const std::byte* base() const noexcept { return base_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  const Fd& memory() const noexcept { return memory_; }
  bool is_unused() const noexcept { return used_.empty(); }
  bool is_detached() const noexcept { return is_detached_; }
  std::size_t used_bytes() const noexcept { return used_bytes_; }

  /// Returns the smallest free range that holds `bytes`, or nullptr.
  std::byte* allocate(std::size_t bytes) {
    if (is_detached_) return nullptr;
    auto best = free_.end();
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (fits(*range, bytes) && (best == free_.end() || range->second < best->second)) best = range;
    }
    if (best == free_.end()) return nullptr;
    const auto [begin, length] = *best;
    const std::size_t at = aligned(begin, bytes);
    used_[at] = bytes;
    if (at + bytes < begin + length) free_[at + bytes] = begin + length - at - bytes;
    used_bytes_ += bytes;
    if (at > begin) {
      best->second = at - begin;
    } else {
      free_.erase(best);
    }
    return base_.get() + at;
  }

  void free(std::size_t offset) noexcept {
    auto freed = used_.extract(offset);  // kept for free_, because this may not allocate
    if (freed.empty()) return;
    std::size_t& bytes = freed.mapped();
    used_bytes_ -= bytes;
    if (is_detached_) return;  // never used again
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_.insert(std::move(freed));
  }

  void detach(std::size_t offset, std::size_t bytes, bool keep_content) {
    if (!is_used(offset, bytes)) return;
    is_detached_ = true;
    if (keep_content) replace_pages(offset / page_bytes() * page_bytes(), round_up(offset + bytes, page_bytes()));
  }

  /// Returns whether the bytes lie within one allocation that peers may use.
  bool holds(std::size_t offset, std::size_t bytes) const { return !is_detached_ && is_used(offset, bytes); }

 private:
  using Ranges = std::map<std::size_t, std::size_t>;  // bytes by offset

  bool is_used(std::size_t offset, std::size_t bytes) const {
    auto after = used_.upper_bound(offset);
    if (after == used_.begin()) return false;
    const auto& [begin, length] = *--after;
    return offset - begin <= length && bytes <= length - (offset - begin);
  }

  static bool fits(const Ranges::value_type& range, std::size_t bytes) {
    const std::size_t skipped = aligned(range.first, bytes) - range.first;
    return skipped <= range.second && bytes <= range.second - skipped;
  }

  // The address always holds either the old page or its copy: other threads may be reading.
  void replace_pages(std::size_t begin, std::size_t end) const {
    if (begin >= end) return;
    void* const copy = ::mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
      throw Error(ErrorKind::kUnavailable, with_errno("no memory for a copy of what a stopped peer may write", errno));
    }
    std::memcpy(copy, base_.get() + begin, end - begin);
    if (::mremap(copy, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED, base_.get() + begin) == MAP_FAILED) {
      ::munmap(copy, end - begin);
      throw Error(ErrorKind::kUnavailable, with_errno("cannot replace what a stopped peer may write", errno));
    }
  }

  const std::uint32_t id_;
  const Fd memory_;
  const std::size_t bytes_;
  const Mapped<std::byte> base_;
  Ranges free_;
  Ranges used_;
  std::size_t used_bytes_ = 0;
  bool is_detached_ = false;
};

Arena::Arena(std::size_t budget_bytes) : budget_bytes_(budget_bytes) {}

Arena::~Arena() {
  // A forked child maps the same memory: neither that nor the header is its own.
  if (process_ == fork_depth()) return;
  for (auto& [base, slab] : slabs_) static_cast<void>(slab.release());
}

Arena::Slab* Arena::add_slab(std::size_t bytes) {
  // Each slab holds a descriptor, so a larger arena has larger ones.
  const std::size_t usual = std::clamp(mapped_bytes_ / 4, kMinSlab, kMaxUsualSlab);
  const std::size_t needed = round_up(bytes + page_bytes(), kSlabUnit);
  std::size_t whole_bytes = std::max(needed, usual);
  if (mapped_bytes_ + whole_bytes > budget_bytes_) take_unused(0);
  if (mapped_bytes_ + whole_bytes > budget_bytes_) whole_bytes = needed;
  if (mapped_bytes_ + whole_bytes > budget_bytes_) return nullptr;
  auto slab = std::make_unique<Slab>(next_id_, whole_bytes);
  Slab* const added = slab.get();
  slabs_.emplace(added->base(), std::move(slab));
  by_id_[next_id_++] = added;
  mapped_bytes_ += whole_bytes;
  return added;
}

void* Arena::allocate(std::size_t bytes) {
  if (process_ != fork_depth() || bytes > budget_bytes_) return nullptr;
  const std::size_t wanted = aligned(std::max(bytes, kCacheLine), bytes);
  const std::lock_guard lock(mutex_);
  for (const auto& [base, slab] : slabs_) {
    if (void* const found = slab->allocate(wanted)) return found;
  }
  Slab* const added = add_slab(wanted);
  return added == nullptr ? nullptr : added->allocate(wanted);
}

void Arena::free(void* data) noexcept {
  if (data == nullptr || process_ != fork_depth()) return;
  Slabs unused;  // unmapped without the lock
  const std::lock_guard lock(mutex_);
  const auto found = slab_with(data);
  if (found == slabs_.end()) return;
  found->second->free(static_cast<std::size_t>(static_cast<std::byte*>(data) - found->first));
  if (found->second->is_unused()) unused = take_unused(kKeptBytes);
}

void Arena::detach(const ArenaRange& range, bool keep_content) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(range.place.slab);
  if (found != by_id_.end()) found->second->detach(range.place.offset, range.bytes, keep_content);
}

void Arena::trim() noexcept {
  if (process_ != fork_depth()) return;
  Slabs unused;  // unmapped without the lock
  const std::lock_guard lock(mutex_);
  unused = take_unused(0);
}

// Removes slabs without an allocation, as long as there are more than `kept_bytes` of them.
Arena::Slabs Arena::take_unused(std::size_t kept_bytes) noexcept {
  Slabs taken;
  std::size_t unused = 0;
  for (const auto& [base, slab] : slabs_) unused += slab->is_unused() ? slab->bytes() : 0;
  for (auto at = slabs_.begin(); at != slabs_.end();) {
    const std::unique_ptr<Slab>& slab = at->second;
    if (!slab->is_unused() || (unused <= kept_bytes && !slab->is_detached())) {
      ++at;
      continue;
    }
    unused -= slab->bytes();
    mapped_bytes_ -= slab->bytes();
    by_id_.erase(slab->id());
    taken.insert(slabs_.extract(at++));
  }
  return taken;
}

Arena::Slabs::const_iterator Arena::slab_with(const void* data) const {
  const auto* const address = static_cast<const std::byte*>(data);
  auto after = slabs_.upper_bound(address);
  if (after == slabs_.begin()) return slabs_.end();
  --after;
  return address < after->first + after->second->bytes() ? after : slabs_.end();
}

std::optional<ArenaPlace> Arena::find(const void* data, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const auto found = slab_with(data);
  if (found == slabs_.end()) return std::nullopt;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - found->first);
  if (!found->second->holds(offset, bytes)) return std::nullopt;
  return ArenaPlace{found->second->id(), offset};
}

Arena::SlabMemory Arena::memory_of(std::uint32_t slab) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_id_.find(slab);
  if (found == by_id_.end()) throw Error(ErrorKind::kInvalidArgument, "an arena has no slab " + std::to_string(slab));
  return {duplicate(found->second->memory()), found->second->bytes()};
}

std::size_t Arena::mapped_bytes() const {
  const std::shared_lock lock(mutex_);
  return mapped_bytes_;
}

std::size_t Arena::allocated_bytes() const {
  const std::shared_lock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [base, slab] : slabs_) bytes += slab->used_bytes();
  return bytes;
}

void PeerArena::add(std::uint32_t slab, const Fd& memory, std::uint64_t bytes) {
  check_sealed_memfd(memory, bytes);
  if (bytes < sizeof(ArenaSlabHeader) || bytes > kMaxSlabBytes)
    throw Error(ErrorKind::kProtocol, "a slab of ", bytes, " bytes in the peer's arena");
  const std::lock_guard lock(mutex_);
  if (slabs_.size() >= kMaxSlabs || slabs_.contains(slab)) {
    throw Error(ErrorKind::kProtocol, "slab ", slab, " of the peer's arena came twice, or is one of more than ",
                kMaxSlabs);
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
    throw Error(ErrorKind::kProtocol, bytes, " bytes at ", place.offset, " are outside the peer's arena");
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

std::shared_ptr<void> PeerArena::take_all() {
  const std::lock_guard lock(mutex_);
  return std::make_shared<std::map<std::uint32_t, Slab>>(std::exchange(slabs_, {}));
}

}  // namespace atl::transport
