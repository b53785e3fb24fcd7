// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "atoll/core/error.h"

namespace atl::infer {

/// Lets the inferences of a session run one at a time, and none once it is closed. Any thread.
class TurnGate {
 public:
  /// A turn. The constructor waits for it, and throws Error(kInvalidArgument) if the gate is closed, kAborted if it is
  /// closed before the turn begins, and what `check` throws, which is called every 50 ms during the wait.
  class Turn {
   public:
    explicit Turn(TurnGate& gate, const std::function<void()>& check = {})
        : gate_(gate), has_waited_(gate.enter(check)) {}
    ~Turn() { gate_.leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool has_waited() const noexcept { return has_waited_; }

   private:
    TurnGate& gate_;
    const bool has_waited_;
  };

  /// Ends waiting turns at once; the one that runs sees is_closed(). Returns when all turns are over; must not be
  /// called within a turn.
  void close();
  bool is_closed() const noexcept { return is_closed_.load(std::memory_order_acquire); }
  /// Throws the error of an inference that stops because the gate is closed.
  [[noreturn]] static void refuse() {
    throw Error(ErrorKind::kAborted, "the session was closed while this inference ran");
  }

 private:
  bool enter(const std::function<void()>& check);
  void leave();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_closed_ = false;
  bool is_taken_ = false;
  int inside_ = 0;  // with a turn, or waiting for one
};

}  // namespace atl::infer
