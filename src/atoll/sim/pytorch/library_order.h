// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "atoll/sim/device/stream.h"

namespace atl::sim {

/// Orders the operations that libraries issue to one device as a busy real device would: a collective begins when
/// everything that any communicator issued before it has ended, and a message when the collectives before it have.
/// Ranks that issue operations of several communicators in different orders then wait for each other forever.
/// Thread-safe.
class LibraryOrder {
 public:
  /// Issues an operation: `enqueue` puts it in `stream` and returns its end.
  Event issue(Stream& stream, bool is_message, const std::function<Event()>& enqueue) {
    const std::lock_guard lock(mutex_);
    stream.wait_for(collective_);
    if (!is_message) {
      for (const Event& message : messages_) stream.wait_for(message);
      messages_.clear();
    }
    const Event end = enqueue();
    if (!is_message) {
      collective_ = end;
      return end;
    }
    std::erase_if(messages_, [](const Event& message) { return message.is_reached(); });
    messages_.push_back(end);
    return end;
  }

 private:
  std::mutex mutex_;
  Event collective_;             // the last collective
  std::vector<Event> messages_;  // issued since then
};

}  // namespace atl::sim
