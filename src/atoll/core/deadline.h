// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace atl {

using Clock = std::chrono::steady_clock;

/// A point in time after which a wait must fail. Every wait in Atoll takes one.
class Deadline {
 public:
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  /// Expires `duration` from now, or never if `duration` is too large to add.
  static Deadline after(std::chrono::nanoseconds duration) {
    const auto now = Clock::now();
    return duration >= Clock::time_point::max() - now ? never() : Deadline(now + duration);
  }

  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }

  /// Returns the time left, at least zero and at most `limit`.
  std::chrono::nanoseconds remaining(std::chrono::nanoseconds limit) const {
    if (is_never()) return limit;
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(when_ - Clock::now());
    return std::clamp(left, std::chrono::nanoseconds(0), limit);
  }

  Deadline earlier(Deadline other) const { return when_ < other.when_ ? *this : other; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace atl
