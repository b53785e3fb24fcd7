// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>

namespace atl::pytorch {

/// How long copies between devices and the host take, in both directions. Measures nothing until it is asked for the
/// first time, because events that tell times cost more than others. Thread-safe.
class StagingClock {
 public:
  /// Before copies are issued on `stream`; none while nothing is measured.
  std::optional<c10::Event> begin(const c10::Stream& stream) const;
  /// Behind these copies, with what `begin` gave.
  void end(std::optional<c10::Event> begun, const c10::Stream& stream);
  /// Copies that the caller has made itself.
  void add(std::chrono::nanoseconds time);

  /// Seconds of copies that have ended, since the first call.
  double seconds();

 private:
  struct Span {
    c10::Event begin;
    c10::Event end;
  };
  void count_ended();  // callers hold mutex_

  mutable std::mutex mutex_;
  bool is_on_ = false;
  double seconds_ = 0;
  std::deque<Span> under_way_;  // in order of issue in each direction
};

}  // namespace atl::pytorch
