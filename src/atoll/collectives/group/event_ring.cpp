// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/event_ring.h"

#include <nlohmann/json.hpp>

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

nlohmann::json EventRing::to_json() const {
  static constexpr const char* kStateNames[] = {"issued", "started", "completed", "failed"};
  const std::lock_guard lock(mutex_);
  auto list = nlohmann::json::array();
  for (Ticket ticket = next_ > events_.size() ? next_ - events_.size() : 0; ticket < next_; ++ticket) {
    const Event& event = events_[ticket % events_.size()];
    list.push_back({{"operation", to_string(event.signature.operation)},
                    {"sequence", number_of(event.signature.sequence)},
                    {"part", part_of(event.signature.sequence)},
                    {"reduce_op", to_string(event.signature.reduce_op)},
                    {"dtype", to_string(event.signature.dtype)},
                    {"bytes", event.bytes},
                    {"root", event.signature.root},
                    {"state", kStateNames[static_cast<std::size_t>(event.state)]},
                    {"issued_us", event.issued_us},
                    {"started_us", event.started_us},
                    {"finished_us", event.finished_us}});
  }
  return list;
}

}  // namespace atl::collectives
