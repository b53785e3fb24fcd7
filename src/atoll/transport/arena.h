// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "atoll/core/fd.h"

namespace atl::transport {

/// The place of some bytes in a process's arena, by which a peer finds them in its own mapping.
struct ArenaPlace {
  std::uint32_t slab = 0;
  std::uint64_t offset = 0;  ///< bytes from the slab's start
};

struct ArenaRange {
  ArenaPlace place;
  std::uint64_t bytes = 0;
};

/// Memory of this process that peers on the same host use where it lies, so that their copies are the only ones. It
/// consists of slabs, each a memfd that links pass to their peers; it ends with the last process that maps it. All
/// functions are thread-safe. In a forked child the memory stays shared with the parent, allocate() fails, and free()
/// does nothing.
class Arena {
 public:
  /// At most `budget_bytes` are taken from the system at once, not counting slabs that are no longer used and that
  /// peers have not unmapped yet, which takes them a fraction of a second.
  explicit Arena(std::size_t budget_bytes);

  /// Unmaps everything; memory that is still allocated must not be used any more.
  ~Arena();

  /// Returns memory aligned to a cache line, and to a page if it is a page or more; nullptr when the budget is used up.
  /// Its content is arbitrary. Throws Error(kUnavailable) when the system has no memory, descriptor or mapping left.
  void* allocate(std::size_t bytes);

  /// Frees what allocate() returned (nullptr: nothing). Slabs without any allocation are kept for the next one, up
  /// to a limit, and then returned to the system.
  void free(void* data) noexcept;

  /// Parts a range within one allocation from the peers: what they write there from now on is not seen, and neither the
  /// range nor the rest of its slab is found again. `keep_content`: the pages that hold the range are replaced by
  /// copies, at the same address, so all of these pages must be the caller's; otherwise its content is not used again,
  /// and remains the peers' too. For a range that a stopped peer may still write; any other is ignored.
  void detach(const ArenaRange& range, bool keep_content);

  /// Returns all slabs without an allocation to the system.
  void trim() noexcept;

  /// Returns the place of memory that lies within one allocation of this arena, else nothing.
  std::optional<ArenaPlace> find(const void* data, std::size_t bytes) const;

  /// Returns a new descriptor of the slab's memory and its size. Throws Error(kInvalidArgument) if there is none.
  struct SlabMemory {
    Fd memory;
    std::uint64_t bytes = 0;
  };
  SlabMemory memory_of(std::uint32_t slab) const;

  std::size_t mapped_bytes() const;     ///< taken from the system
  std::size_t allocated_bytes() const;  ///< of that, in use

 private:
  class Slab;
  using Slabs = std::map<const std::byte*, std::unique_ptr<Slab>>;  // by the address of their memory

  Slab* add_slab(std::size_t bytes);
  Slabs take_unused(std::size_t kept_bytes) noexcept;
  Slabs::const_iterator slab_with(const void* data) const;

  const std::size_t budget_bytes_;
  const std::uint32_t process_ = fork_depth();
  mutable std::shared_mutex mutex_;  // guards what follows
  Slabs slabs_;
  std::map<std::uint32_t, Slab*> by_id_;
  std::uint32_t next_id_ = 1;
  std::size_t mapped_bytes_ = 0;
};

/// The first page of a slab's memory. Peers map it too; its owner writes it.
struct ArenaSlabHeader {
  std::atomic<std::uint32_t> is_retired{0};  ///< not used any more: a peer unmaps it, so that the memory is returned
};

/// A peer's arena as far as the peer has passed it. Thread-safe.
class PeerArena {
 public:
  /// Keeps the bytes that find() returned mapped.
  using Mapping = std::shared_ptr<std::byte>;

  /// Maps a slab. Throws Error(kProtocol) if it is not sealed memory of that size, is known already, or is one too
  /// many; Error(kUnavailable).
  void add(std::uint32_t slab, const Fd& memory, std::uint64_t bytes);

  /// Returns the mapped bytes at `place`, or nullptr if the slab has not arrived yet, or has been retired. Throws
  /// Error(kProtocol) for a range outside the slab.
  Mapping find(const ArenaPlace& place, std::uint64_t bytes) const;

  /// Unmaps the slabs that the peer does not use any more, once no frame uses them.
  void drop_retired() noexcept;

  /// Forgets all slabs. They are unmapped with what this returns, once no frame uses them, which takes long.
  std::shared_ptr<void> take_all();

 private:
  struct Slab {
    Mapping base;
    std::uint64_t bytes = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::uint32_t, Slab> slabs_;
};

}  // namespace atl::transport
