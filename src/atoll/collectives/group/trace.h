// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "atoll/collectives/describe.h"

namespace atl::collectives {

/// The last operations of one rank in one group, for the dump after a failure and for comparison with what other ranks
/// have called. Thread-safe; adding allocates nothing.
class EventRing {
 public:
  using Ticket = std::uint64_t;
  enum class State : std::uint8_t { kIssued, kStarted, kCompleted, kFailed };
  struct Event {
    Signature signature;
    std::uint64_t count = 0;  ///< as in IssuedCall
    std::uint64_t bytes = 0;
    State state = State::kIssued;
    std::int64_t issued_us = 0;  ///< microseconds since the Unix epoch, as the following ones; 0: not yet
    std::int64_t started_us = 0;
    std::int64_t finished_us = 0;
  };

  /// Remembers the last `slots` operations.
  explicit EventRing(std::size_t slots) : events_(slots) {}

  /// Microseconds since the Unix epoch.
  static std::int64_t now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  Ticket issued(const Signature& signature, std::uint64_t count, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    events_[next_ % events_.size()] = Event{signature, count, bytes, State::kIssued, now_us(), 0, 0};
    return next_++;
  }
  void started(Ticket ticket) { set(ticket, State::kStarted, &Event::started_us); }
  void finished(Ticket ticket, bool succeeded) {
    set(ticket, succeeded ? State::kCompleted : State::kFailed, &Event::finished_us);
  }

  /// Returns the collective with this sequence, if it is among the last ones.
  std::optional<Event> find(std::uint64_t sequence) const {
    const std::lock_guard lock(mutex_);
    for (Ticket ticket = next_; ticket-- > oldest();) {
      const Event& event = events_[ticket % events_.size()];
      if (event.signature.sequence == sequence) return event;
    }
    return std::nullopt;
  }

  /// Returns the operation that was issued last, if any.
  std::optional<Event> last() const {
    const std::lock_guard lock(mutex_);
    return next_ == 0 ? std::nullopt : std::optional(events_[(next_ - 1) % events_.size()]);
  }

  /// Returns the operations, oldest first.
  std::vector<Event> list() const {
    const std::lock_guard lock(mutex_);
    std::vector<Event> events;
    for (Ticket ticket = oldest(); ticket < next_; ++ticket) events.push_back(events_[ticket % events_.size()]);
    return events;
  }

 private:
  Ticket oldest() const { return next_ > events_.size() ? next_ - events_.size() : 0; }
  void set(Ticket ticket, State state, std::int64_t Event::*time_us) {
    const std::lock_guard lock(mutex_);
    if (ticket < oldest()) return;  // overwritten by now
    Event& event = events_[ticket % events_.size()];
    event.state = state;
    event.*time_us = now_us();
  }

  mutable std::mutex mutex_;
  std::vector<Event> events_;
  Ticket next_ = 0;
};

/// How far another process's wall clock is ahead of this one's: the true offset is within `offset_us` ± `error_us`.
struct ClockSample {
  std::int64_t at_us = 0;  ///< by this clock
  std::int64_t offset_us = 0;
  std::int64_t error_us = 0;
};

/// Estimates of another process's clock over a whole run, in bounded memory. Each exchange of times bounds the offset
/// by half of its round trip, and of a series of exchanges the quickest one is kept. When there are kMax samples, every
/// other one is dropped, so that the remaining ones are twice as far apart.
class ClockSamples {
 public:
  static constexpr std::size_t kMax = 64;

  /// Adds an exchange: requested at `asked_us` and received at `heard_us` by this clock, answered at `answered_us` by
  /// the other.
  void add(std::int64_t asked_us, std::int64_t answered_us, std::int64_t heard_us) {
    if (heard_us < asked_us) return;  // the clock was set back in the meantime
    // One more microsecond, because both clocks are read in whole microseconds.
    const ClockSample sample{heard_us, answered_us - (asked_us + (heard_us - asked_us) / 2),
                             (heard_us - asked_us) / 2 + 1};
    if (!best_ || sample.error_us <= best_->error_us) best_ = sample;
  }

  /// Ends a series of exchanges.
  void keep_best() {
    if (!best_) return;
    if (kept_.size() == kMax) {
      for (std::size_t i = 0; i < kMax / 2; ++i) kept_[i] = kept_[2 * i];
      kept_.resize(kMax / 2);
      ++halvings_;
    }
    kept_.push_back(*best_);
    best_.reset();
  }

  /// Oldest first; the best of an unfinished series is the last one.
  std::vector<ClockSample> list() const {
    auto all = kept_;
    if (best_) all.push_back(*best_);
    return all;
  }

  /// Returns how often the samples have been halved so far.
  int halvings() const noexcept { return halvings_; }

 private:
  std::vector<ClockSample> kept_;
  std::optional<ClockSample> best_;
  int halvings_ = 0;
};

}  // namespace atl::collectives
