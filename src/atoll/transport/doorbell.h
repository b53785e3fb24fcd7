// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "atoll/core/fd.h"
#include "atoll/transport/shared_memory.h"

namespace atl::transport {

/// The waiters that a channel wakes. Collectives and point-to-point messages have separate bells, so that a receive
/// posted long before its message does not cost every collective a system call.
enum class Bell : std::uint32_t { kCollective = 0, kPointToPoint = 1 };
inline constexpr std::size_t kBellCount = 2;

/// Words of one bell, in memory shared between processes. A waiter announces itself in `sleepers`, looks again for work
/// and only then sleeps on `value`; a ringer publishes its work, then rings only if there are sleepers.
struct alignas(64) BellWords {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// Wakes the sleepers of `bell`, if any. Call it after the work is published; without sleepers it costs a fence and a
/// load. Any thread of any process that maps the words. The words of a process that is gone are harmless.
void ring(BellWords& bell) noexcept;

/// The content of a Doorbell's page.
struct DoorbellPage {
  std::array<BellWords, kBellCount> bells;
  /// Sign of life: the owner's loop thread increments it, and peers watch it change.
  alignas(64) std::atomic<std::uint64_t> beat{0};
};

/// This process's bells: a sealed memfd page that peers map. Owned by the Endpoint.
class Doorbell {
 public:
  Doorbell();  ///< throws Error(kUnavailable) when no memfd can be made

  BellWords& bell(Bell which) noexcept { return page_->bells[static_cast<std::size_t>(which)]; }
  void ring_all() noexcept;
  void beat() noexcept { page_->beat.fetch_add(1, std::memory_order_relaxed); }

  /// Passed to peers with SCM_RIGHTS.
  const Fd& memory() const noexcept { return memory_; }

 private:
  const Fd memory_;
  const Mapped<DoorbellPage> page_;
};

/// A peer's bells, mapped here.
class RemoteDoorbell {
 public:
  RemoteDoorbell() = default;

  /// Throws Error(kProtocol) when `memory` is not a Doorbell's memory, Error(kUnavailable) when it cannot be mapped.
  explicit RemoteDoorbell(const Fd& memory);

  explicit operator bool() const noexcept { return page_ != nullptr; }
  BellWords& bell(Bell which) const noexcept { return page_->bells[static_cast<std::size_t>(which)]; }
  std::uint64_t beats() const noexcept { return page_->beat.load(std::memory_order_relaxed); }

 private:
  Mapped<DoorbellPage> page_;
};

/// One thread's wait on a bell:
///   Sleeper sleeper(bell, budget); loop { if (work()) { sleeper.reset(); break; } sleeper.wait_briefly(limit); }
/// spins at first, then sleeps on the futex, and never misses a ring that follows work(). Spinning yields the core each
/// time, so that other threads on it, perhaps the peer's, can run. The budget halves after a wait that outlasted it,
/// down to a sixteenth, and doubles again after one that did not: a rank that waits for a slow link leaves its core to
/// threads that compute.
class Sleeper {
 public:
  Sleeper(BellWords& bell, std::chrono::nanoseconds spin) noexcept;
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  /// Returns after a yield while the spin budget lasts; then announces the sleeper and returns once more, so
  /// that the caller looks again; only then blocks until a ring or `limit`. The caller re-checks its work after each
  /// return.
  void wait_briefly(std::chrono::nanoseconds limit) noexcept;

  /// Call it when work was found: restarts the spin budget and withdraws the announcement.
  void reset() noexcept;

  /// The longest time that the next wait spins.
  std::chrono::nanoseconds budget() const noexcept { return budget_; }

 private:
  BellWords& bell_;
  const std::chrono::nanoseconds spin_;
  std::chrono::nanoseconds budget_;
  std::uint32_t seen_ = 0;
  bool announced_ = false;
  bool slept_ = false;
  std::int64_t spin_since_ns_ = 0;  // 0: not started
};

/// Returns how long a waiter spins before it sleeps: longer than a wake-up takes if the host has a core for every local
/// rank. If ranks outnumber cores, long enough for all of them to have had a turn, as the waiter yields at once.
std::chrono::nanoseconds spin_budget(std::size_t ranks_on_this_host) noexcept;

}  // namespace atl::transport
