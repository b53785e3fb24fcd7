// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

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

// Sleeping on a word of memory, which may be shared between processes.

/// Blocks while `word` holds `expected`, until a wake-up, a signal or `limit`. The caller re-checks its condition
/// afterwards.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::nanoseconds limit) noexcept {
  const auto ns = limit.count() > 0 ? limit.count() : 0;
  const timespec timeout{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

/// Wakes every thread of every process that waits on `word`.
inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace atl
