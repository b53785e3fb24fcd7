// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace atl {

// Fences that ThreadSanitizer, which knows none, sees as accesses to one word.

/// Orders all accesses before it before all accesses after it, also a store to one word before a load of another.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> anchor{0};
  anchor.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Orders all loads before it before all accesses after it.
inline void acquire_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  full_fence();
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

}  // namespace atl
