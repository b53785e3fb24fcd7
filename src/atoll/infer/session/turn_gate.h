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
  /// A turn, from its coming to its end. Error(kInvalidArgument) where the gate is closed, kAborted where it closes before
  /// the turn has come; and what `check` throws, which is called every 50 ms while it waits.
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

  /// Turns that wait end at once; who has the turn sees is_closed(). Returns when nobody is inside; not to be called there.
  void close();
  bool is_closed() const noexcept { return is_closed_.load(std::memory_order_acquire); }
  /// For an inference that stops because of it.
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
