// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "atoll/core/deadline.h"

namespace atl::infer {

/// What the thread of a long call looks at now and then, such as signals in Python. Of one call and its thread.
class CallerCheck {
 public:
  static constexpr std::chrono::milliseconds kPeriod{50};

  /// `check` throws where the call is to end; null: nothing is looked at.
  explicit CallerCheck(std::function<void()> check) : check_(std::move(check)), next_(Clock::now() + kPeriod) {}
  /// Calls it once in a period, and not in the first one; to be called far more often. Throws what it throws.
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
