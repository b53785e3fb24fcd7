// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "atoll/core/fd.h"

namespace atl::collectives {

/// Threads among which the folds and copies of an operation are divided, so that more cores than one move its bytes.
/// How many there are does not change results: each byte is computed by itself.
class FoldThreads {
 public:
  /// `count` threads take part, the calling one included; the others start with the first work that is worth it.
  explicit FoldThreads(std::size_t count) : count_(count) {}

  /// In a forked child, which has none of the threads, it does nothing.
  ~FoldThreads();
  FoldThreads(const FoldThreads&) = delete;
  FoldThreads& operator=(const FoldThreads&) = delete;

  std::size_t count() const noexcept { return count_; }

  /// Calls `body(begin, end)` for ranges that make up [0, bytes), each a multiple of a cache line except the last, and
  /// returns when all calls have: on as many threads as have 32 KiB or more to do. On the calling thread alone if
  /// `bytes` are few or another thread is in share(). `body` must not throw.
  template <typename Body>
  void share(std::size_t bytes, const Body& body) {
    const auto call = [](const void* context, std::size_t begin, std::size_t end) {
      (*static_cast<const Body*>(context))(begin, end);
    };
    run({bytes, call, &body});
  }

 private:
  struct Work {
    std::size_t bytes = 0;
    void (*call)(const void* context, std::size_t begin, std::size_t end) = nullptr;
    const void* context = nullptr;
    std::size_t parts = 1;
  };
  void run(const Work& work);
  void start_threads();
  void serve(std::size_t part) noexcept;
  static void do_part(const Work& work, std::size_t part);

  std::size_t count_;
  const std::uint32_t process_ = fork_depth();
  std::mutex mutex_;  // held by the thread that is in run()
  std::vector<std::thread> threads_;
  Work work_;  // of the current round
  alignas(64) std::atomic<std::uint32_t> round_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<std::size_t> parts_left_{0};
};

/// Returns how many threads fold by default: those cores of the machine that each of `ranks_on_this_host` has beside
/// the one for its network thread, 4 at most.
std::size_t usual_fold_threads(std::size_t ranks_on_this_host) noexcept;

}  // namespace atl::collectives
