// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/reduce/fold_threads.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>

#include "atoll/core/deadline.h"
#include "atoll/core/log.h"

namespace atl::collectives {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kMinShare = std::size_t{32} << 10;  // less takes no longer than waking another core
constexpr std::size_t kMaxUsual = 4;
// Folds of one operation follow each other closely; a thread that sleeps in between wakes too late for the next.
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

FoldThreads::~FoldThreads() {
  if (process_ != fork_depth()) {
    // Never destroyed: they are the parent's.
    static_cast<void>(std::make_unique<std::vector<std::thread>>(std::move(threads_)).release());
    return;
  }
  stopping_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void FoldThreads::start_threads() {
  while (threads_.size() + 1 < count_) {
    try {
      threads_.emplace_back([this, part = threads_.size() + 1] { serve(part); });
    } catch (const std::system_error& error) {
      log(LogLevel::kWarning, "folds use " + std::to_string(threads_.size() + 1) + " threads instead of " +
                                  std::to_string(count_) + ": " + error.what());
      count_ = threads_.size() + 1;
    }
  }
}

void FoldThreads::do_part(const Work& work, std::size_t part) {
  const std::size_t lines = (work.bytes + kCacheLine - 1) / kCacheLine;
  const std::size_t each = (lines + work.parts - 1) / work.parts * kCacheLine;
  const std::size_t begin = std::min(part * each, work.bytes);
  const std::size_t end = std::min(begin + each, work.bytes);
  if (begin < end) work.call(work.context, begin, end);
}

void FoldThreads::run(const Work& work) {
  const auto alone = [&] { work.call(work.context, 0, work.bytes); };
  if (work.bytes < 2 * kMinShare) return alone();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || count_ <= 1) return alone();
  start_threads();
  work_ = work;
  work_.parts = std::min(count_, work.bytes / kMinShare);
  parts_left_.store(threads_.size(), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  do_part(work_, 0);
  while (parts_left_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

void FoldThreads::serve(std::size_t part) noexcept {
  pthread_setname_np(pthread_self(), "atoll-fold");
  for (std::uint32_t seen = 0;;) {
    const auto idle_since = Clock::now();
    while (round_.load(std::memory_order_acquire) == seen && Clock::now() - idle_since < kSpin)
      std::this_thread::yield();
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    if (part < work_.parts) do_part(work_, part);
    parts_left_.fetch_sub(1, std::memory_order_release);
  }
}

std::size_t usual_fold_threads(std::size_t ranks_on_this_host) noexcept {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t each = cores / std::max<std::size_t>(ranks_on_this_host, 1);
  return std::clamp<std::size_t>(each - std::min<std::size_t>(each, 1), 1, kMaxUsual);
}

}  // namespace atl::collectives
