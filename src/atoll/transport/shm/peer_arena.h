// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "atoll/core/fd.h"
#include "atoll/transport/arena.h"

namespace atl::transport {

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
