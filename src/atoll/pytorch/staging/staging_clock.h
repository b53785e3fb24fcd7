// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>

namespace atl::pytorch {

/// Measures how long copies between devices and the host take, in both directions. Measures nothing before the first
/// call of seconds(), because events with timestamps cost more than others. Thread-safe.
class StagingClock {
 public:
  /// Call before copies are issued on `stream`. Returns nothing if they are not measured.
  std::optional<c10::Event> begin(const c10::Stream& stream) const;
  /// Call after these copies have been issued, with the result of begin().
  void end(std::optional<c10::Event> started, const c10::Stream& stream);
  /// Adds the time of copies that the caller has made itself.
  void add(std::chrono::nanoseconds time);

  /// The seconds that copies have taken since the first call, counting those that have ended.
  double seconds();

 private:
  struct Span {
    c10::Event begin;
    c10::Event end;
  };
  void count_ended();  // with mutex_ held

  mutable std::mutex mutex_;
  bool is_on_ = false;
  double seconds_ = 0;
  std::deque<Span> under_way_;  // in order of issue in each direction
};

}  // namespace atl::pytorch
