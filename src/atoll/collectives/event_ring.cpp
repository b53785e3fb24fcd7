// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/event_ring.h"

#include <nlohmann/json.hpp>

namespace atl::collectives {
namespace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

EventRing::Ticket EventRing::issued(const Signature& signature, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  events_[next_ % kSlots] = Event{signature, bytes, State::kIssued, now_us(), 0, 0};
  return next_++;
}

void EventRing::started(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket + kSlots < next_) return;  // overwritten since
  Event& event = events_[ticket % kSlots];
  event.state = State::kStarted;
  event.started_us = now_us();
}

void EventRing::finished(Ticket ticket, bool succeeded) {
  const std::lock_guard lock(mutex_);
  if (ticket + kSlots < next_) return;
  Event& event = events_[ticket % kSlots];
  event.state = succeeded ? State::kCompleted : State::kFailed;
  event.finished_us = now_us();
}

nlohmann::json EventRing::to_json() const {
  static constexpr const char* kStateNames[] = {"issued", "started", "completed", "failed"};
  const std::lock_guard lock(mutex_);
  auto list = nlohmann::json::array();
  for (Ticket ticket = next_ > kSlots ? next_ - kSlots : 0; ticket < next_; ++ticket) {
    const Event& event = events_[ticket % kSlots];
    list.push_back({{"operation", to_string(event.signature.operation)},
                    {"sequence", event.signature.sequence},
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
