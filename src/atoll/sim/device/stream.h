// SPDX-License-Identifier: Apache-2.0
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

/// How far a device kept to its model; shared by its streams. Thread-safe.
struct Punctuality {
  std::atomic<std::uint64_t> tasks{0};
  std::atomic<std::uint64_t> late{0};  ///< ended later than modelled: the host was too slow or too busy
};

/// A point in the work of one stream, which it reaches at a modelled time. Copies share the point. Thread-safe.
class Event {
 public:
  Event();

  /// Whether the stream has reached it. True for one that was never recorded.
  bool is_reached() const;

  /// Blocks until it is reached.
  void wait() const;

  /// When it was reached. Only after is_reached().
  Clock::time_point when() const;

 private:
  friend class Stream;
  struct State {
    mutable std::mutex mutex;
    std::condition_variable changed;
    bool passed = true;          // all work before it is done for real
    Clock::time_point finish{};  // its modelled time, known once `passed`
  };
  void pass(Clock::time_point at) const;

  std::shared_ptr<State> state_;
};

/// One queue of work of a simulated device, in order. Time is modelled: a task begins when the one before it ends, or when
/// it is issued if that is later, and takes as long as it is said to; events are reached at those times and never earlier.
/// All functions are thread-safe; tasks must not throw.
class Stream {
 public:
  explicit Stream(Punctuality& punctuality);

  /// Waits for what was issued.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Work that runs on the calling thread, at once when the queue holds nothing that is still to be done for real;
  /// returns when it has run. The device is busy with it for the modelled time that `work` returns, so the caller may be ahead of
  /// it.
  void run(const std::function<std::chrono::nanoseconds()>& work);

  /// The same, but where run() would wait the stream's own thread does the work, later: it must hold what it needs.
  void run_behind(std::function<void()> work, std::chrono::nanoseconds duration);

  /// Work for the stream's own thread. `work(share)` is called repeatedly with a growing share in (0, 1], the last time with
  /// 1, as the modelled time passes: a copy arrives piece by piece.
  void enqueue(std::function<void(double share)> work, std::chrono::nanoseconds duration);

  /// Work for the stream's own thread that says itself when it ends: `work(begin)` is called at the modelled time `begin`, may
  /// block, and returns the modelled time of its end. `is_modelled`: it counts for punctuality.
  void enqueue_open(std::function<Clock::time_point(Clock::time_point begin)> work, bool is_modelled);

  /// A point after everything issued so far.
  Event record();

  /// What is issued from now on begins after `event` is reached.
  void wait_for(const Event& event);

  /// Whether everything issued is done, by modelled time too.
  bool is_idle() const;

  /// Blocks until is_idle() holds for what was issued before the call.
  void synchronize();

 private:
  struct Task {
    enum class Kind { kWork, kOpen, kPass, kWait };
    Kind kind;
    std::function<void(double)> work;                            // of kWork
    std::chrono::nanoseconds duration{};                         // of kWork
    Event event;                                                 // to pass, or to wait for
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
  Clock::time_point finish_{};  // modelled end of everything done for real
  bool stopping_ = false;
  std::thread thread_;  // started by the first task for it
};

}  // namespace atl::sim
