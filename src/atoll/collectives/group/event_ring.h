// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/collectives/describe.h"

namespace atl::collectives {

/// The last operations of one rank in one group, for the dump after a failure. Thread-safe; adding allocates nothing.
class EventRing {
 public:
  using Ticket = std::uint64_t;
  enum class State : std::uint8_t { kIssued, kStarted, kCompleted, kFailed };
  struct Event {
    Signature signature;
    std::uint64_t bytes = 0;
    State state = State::kIssued;
    std::int64_t issued_us = 0;  ///< microseconds since the Unix epoch, as the following ones; 0: not yet
    std::int64_t started_us = 0;
    std::int64_t finished_us = 0;
  };

  /// Remembers the last `slots` operations.
  explicit EventRing(std::size_t slots) : events_(slots) {}

  /// Microseconds since the Unix epoch.
  static std::int64_t now_us();

  Ticket issued(const Signature& signature, std::uint64_t bytes);
  void started(Ticket ticket);
  void finished(Ticket ticket, bool succeeded);

  /// Returns the collective with this sequence, if it is among the last ones.
  std::optional<Event> find(std::uint64_t sequence) const;

  /// Returns the operation that was issued last, if any.
  std::optional<Event> last() const;

  /// Returns the operations, oldest first.
  std::vector<Event> list() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  Ticket next_ = 0;
};

}  // namespace atl::collectives
