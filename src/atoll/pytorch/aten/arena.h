// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace atl::pytorch {

/// While one lives, tensors that this thread makes in host memory take blocks that earlier ones have given back, and
/// give theirs back, so that repeated inferences touch the same pages. Other threads, and what is made outside, have
/// the allocator that was there before. A tensor may outlive the scope and be freed by any thread. Scopes nest.
///
/// The first scope of a process puts an allocator before PyTorch's own. Where somebody else has put theirs there,
/// nothing changes.
class ArenaScope {
 public:
  ArenaScope() noexcept;
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
};

/// Bytes of blocks that are kept and not in use: at most kMaxArenaBytes.
std::size_t arena_bytes();
inline constexpr std::size_t kMaxArenaBytes = std::size_t{1} << 30;

/// Gives them back to the system.
void empty_arena();

}  // namespace atl::pytorch
