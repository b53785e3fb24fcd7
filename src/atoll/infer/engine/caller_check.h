// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "atoll/core/deadline.h"

namespace atl::infer {

/// A check that the thread of a long call makes from time to time, such as for signals in Python. Belongs to one call
/// and its thread.
class CallerCheck {
 public:
  static constexpr std::chrono::milliseconds kPeriod{50};

  /// `check` throws to end the call; null: nothing is checked.
  explicit CallerCheck(std::function<void()> check) : check_(std::move(check)), next_(Clock::now() + kPeriod) {}
  /// Calls `check` once per period, but not in the first one. Call this far more often. Throws what `check` throws.
  void operator()() {
    if (!check_ || Clock::now() < next_) return;
    check_();
    next_ = Clock::now() + kPeriod;
  }

 private:
  std::function<void()> check_;
  Clock::time_point next_;
};

}  // namespace atl::infer
