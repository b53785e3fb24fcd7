// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/event_ring.h"

namespace atl::collectives {

std::int64_t EventRing::now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

EventRing::Ticket EventRing::issued(const Signature& signature, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  events_[next_ % events_.size()] = Event{signature, bytes, State::kIssued, now_us(), 0, 0};
  return next_++;
}

void EventRing::started(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket + events_.size() < next_) return;  // overwritten by now
  Event& event = events_[ticket % events_.size()];
  event.state = State::kStarted;
  event.started_us = now_us();
}

void EventRing::finished(Ticket ticket, bool succeeded) {
  const std::lock_guard lock(mutex_);
  if (ticket + events_.size() < next_) return;
  Event& event = events_[ticket % events_.size()];
  event.state = succeeded ? State::kCompleted : State::kFailed;
  event.finished_us = now_us();
}

std::optional<EventRing::Event> EventRing::find(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const Ticket oldest = next_ > events_.size() ? next_ - events_.size() : 0;
  for (Ticket ticket = next_; ticket-- > oldest;) {
    const Event& event = events_[ticket % events_.size()];
    if (event.signature.sequence == sequence) return event;
  }
  return std::nullopt;
}

std::optional<EventRing::Event> EventRing::last() const {
  const std::lock_guard lock(mutex_);
  if (next_ == 0) return std::nullopt;
  return events_[(next_ - 1) % events_.size()];
}

std::vector<EventRing::Event> EventRing::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Event> events;
  for (Ticket ticket = next_ > events_.size() ? next_ - events_.size() : 0; ticket < next_; ++ticket) {
    events.push_back(events_[ticket % events_.size()]);
  }
  return events;
}

}  // namespace atl::collectives
