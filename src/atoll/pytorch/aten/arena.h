// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace atl::pytorch {

/// While an object of this class exists, host tensors that its thread makes reuse blocks that earlier ones have given
/// back, so that repeated inferences touch the same pages. Other threads, and tensors made outside a scope, use the
/// allocator that was set before. A tensor may outlive the scope and be freed by any thread. Scopes nest.
///
/// The first scope of a process installs an allocator in front of PyTorch's own, unless another one has been installed
/// there; then scopes have no effect.
class ArenaScope {
 public:
  ArenaScope() noexcept;
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
};

/// The bytes of idle blocks that are kept, at most kMaxArenaBytes.
std::size_t arena_bytes();
inline constexpr std::size_t kMaxArenaBytes = std::size_t{1} << 30;

/// Returns the idle blocks to the system.
void empty_arena();

}  // namespace atl::pytorch
