// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
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

}  // namespace atl::collectives
