// SPDX-License-Identifier: Apache-2.0
//
// The promises of the simulated device, each proven by the tests that docs/promises.md names:
// M-1: An event is reached at the modelled time of the work before it, and never earlier.
// M-2: Host code that touches device memory ends with a segmentation fault.
// M-3: Training on it gives the CPU's bits.
// M-4: Work that ends later than modelled is counted, and a device that this machine cannot keep up with says so.
// M-5: Delays and the order in which its library's operations finish change no result.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace atl::sim {

using Clock = std::chrono::steady_clock;

/// Counts how punctually a device follows its model; shared by its streams. Thread-safe.
struct Punctuality {
  std::atomic<std::uint64_t> tasks{0};
  std::atomic<std::uint64_t> late{0};  ///< ended later than modelled: the host was too slow or too busy
};

/// A point in the work of one stream, which it reaches at a modelled time. Copies share the point. Thread-safe.
class Event {
 public:
  /// Returns whether the stream has reached it; true for an event that was never recorded.
  bool is_reached() const {
    const std::lock_guard lock(state_->mutex);
    return state_->passed && Clock::now() >= state_->finish;
  }

  /// Blocks until it is reached.
  void wait() const;

  /// Returns when it was reached. Call only after is_reached() has returned true.
  Clock::time_point when() const {
    const std::lock_guard lock(state_->mutex);
    return state_->finish;
  }

 private:
  friend class Stream;
  struct State {
    mutable std::mutex mutex;
    std::condition_variable changed;
    bool passed = true;          // all work before it has really been done
    Clock::time_point finish{};  // its modelled time, known once `passed`
  };
  void pass(Clock::time_point at) const;

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// A queue of work of a simulated device, run in order. Time is modelled: a task begins when the one before it ends, or
/// when it is issued if that is later, and takes its given duration; events are reached at those times and never
/// earlier. All functions are thread-safe; tasks must not throw.
class Stream {
 public:
  explicit Stream(Punctuality& punctuality) : punctuality_(punctuality) {}

  /// Waits for the issued work.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Runs `work` on the calling thread once all queued work has really been done, and returns when it has run. The
  /// device is busy with it for the modelled time that `work` returns, so the caller may run ahead of the device.
  void run(const std::function<std::chrono::nanoseconds()>& work);

  /// Like run(), but if run() would wait, the stream's own thread runs `work` later: it must own all that it needs.
  void run_or_enqueue(std::function<void()> work, std::chrono::nanoseconds duration);

  /// Queues `work` for the stream's own thread. `work(share)` is called repeatedly with a growing share in (0, 1], the
  /// last time with 1, as the modelled time passes: a copy arrives bit by bit.
  void enqueue(std::function<void(double share)> work, std::chrono::nanoseconds duration);

  /// Queues work for the stream's own thread that determines its own end: `work(begin)` is called at the modelled time
  /// `begin`, may block, and returns the modelled time of its end. `is_modelled`: whether it counts for punctuality.
  void enqueue_open(std::function<Clock::time_point(Clock::time_point begin)> work, bool is_modelled);

  /// Returns an event after everything issued so far.
  Event record();

  /// Makes work that is issued from now on begin after `event` is reached.
  void wait_for(const Event& event);

  /// Returns whether everything issued is done, in modelled time too.
  bool is_idle() const;

  /// Blocks until the work issued before the call is done, in modelled time too.
  void synchronize();

 private:
  struct Task {
    enum class Kind { kWork, kOpen, kPass, kWait };
    Kind kind;
    std::function<void(double)> work;                            // of kWork
    std::chrono::nanoseconds duration{};                         // of kWork
    Event event;                                                 // of kPass and kWait
    std::function<Clock::time_point(Clock::time_point)> open{};  // of kOpen
    bool is_modelled = false;                                    // likewise
    Clock::time_point issued = Clock::now();
  };
  void run_locked(const std::function<std::chrono::nanoseconds()>& work, Clock::time_point issued);
  void push(Task task);
  void serve();
  Clock::time_point finish_of(const Task& task, Clock::time_point begin);
  void note(Clock::time_point modelled);

  Punctuality& punctuality_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;      // the front is under way
  Clock::time_point finish_{};  // modelled end of everything that has really been done
  bool stopping_ = false;
  std::thread thread_;  // started with its first task
};

}  // namespace atl::sim
