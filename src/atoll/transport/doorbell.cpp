// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/doorbell.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "atoll/core/atomics.h"

namespace atl::transport {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kRoomyBudget{50'000};
constexpr nanoseconds kCrowdedBudget{200'000};
constexpr int kMinShareOfBudget = 16;

static_assert(sizeof(DoorbellPage) <= 4096);

Mapped<DoorbellPage> map_page(const Fd& memory) {
  void* const page = map_shared(memory, sizeof(DoorbellPage), "a doorbell");
  ::madvise(page, sizeof(DoorbellPage), MADV_DONTFORK);
  return {static_cast<DoorbellPage*>(page), Unmap{sizeof(DoorbellPage)}};
}

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
  return static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

void ring(BellWords& bell) noexcept {
  // Pairs with the fence in Sleeper: either the sleeper sees the work, or this sees the sleeper.
  full_fence();
  if (bell.sleepers.load(std::memory_order_relaxed) == 0) return;
  bell.value.fetch_add(1, std::memory_order_release);
  futex_wake_all(bell.value);
}

Doorbell::Doorbell() : memory_(make_sealed_memfd("atoll-doorbell", sizeof(DoorbellPage))), page_(map_page(memory_)) {
  new (page_.get()) DoorbellPage;
}

void Doorbell::ring_all() noexcept {
  for (BellWords& bell : page_->bells) ring(bell);
}

RemoteDoorbell::RemoteDoorbell(const Fd& memory) {
  check_sealed_memfd(memory, sizeof(DoorbellPage));
  page_ = map_page(memory);
}

Sleeper::Sleeper(BellWords& bell, nanoseconds spin) noexcept : bell_(bell), spin_(spin), budget_(spin) {}

Sleeper::~Sleeper() { reset(); }

void Sleeper::reset() noexcept {
  if (std::exchange(slept_, false)) {
    budget_ = std::max(budget_ / 2, spin_ / kMinShareOfBudget);
  } else if (spin_since_ns_ != 0) {
    budget_ = std::min(budget_ * 2, spin_);
  }
  spin_since_ns_ = 0;
  if (!announced_) return;
  announced_ = false;
  bell_.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Sleeper::wait_briefly(nanoseconds limit) noexcept {
  if (announced_) {
    slept_ = true;
    futex_wait(bell_.value, seen_, limit);
    seen_ = bell_.value.load(std::memory_order_acquire);
    return;
  }
  if (spin_.count() > 0) {
    const std::int64_t now = now_ns();
    if (spin_since_ns_ == 0) spin_since_ns_ = now;
    const std::int64_t spun = now - spin_since_ns_;
    if (spun < std::min(budget_, limit).count()) {
      ::sched_yield();
      return;
    }
  }
  announced_ = true;
  bell_.sleepers.fetch_add(1, std::memory_order_relaxed);
  full_fence();
  seen_ = bell_.value.load(std::memory_order_acquire);
}

nanoseconds spin_budget(std::size_t ranks_on_this_host) noexcept {
  return ranks_on_this_host <= usable_cores() ? kRoomyBudget : kCrowdedBudget;
}

}  // namespace atl::transport
