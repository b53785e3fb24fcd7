// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "atoll/sim/device/stream.h"

namespace atl::sim {

/// The operations that libraries issue to one device. Thread-safe.
class LibraryOrder {
 public:
  /// Issues an operation in the order in which a busy real device would run it: a collective begins when everything
  /// that any communicator issued before it has ended, and a message when the collectives before it have. Ranks that
  /// issue operations of several communicators in different orders then wait for each other forever. `enqueue` puts the
  /// operation in `stream` and returns its end.
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

  /// Notes the end of an operation of any library, issued in this order or not.
  void note(const Event& end) {
    const std::lock_guard lock(mutex_);
    while (!all_.empty() && all_.front().is_reached()) all_.pop_front();
    all_.push_back(end);
  }

  /// Blocks until all operations that were noted so far have ended.
  void wait() {
    std::deque<Event> all;
    {
      const std::lock_guard lock(mutex_);
      all = all_;
    }
    for (const Event& each : all) each.wait();
  }

 private:
  std::mutex mutex_;
  std::deque<Event> all_;        // from the first that is under way
  Event collective_;             // the last collective
  std::vector<Event> messages_;  // issued since then
};

}  // namespace atl::sim
