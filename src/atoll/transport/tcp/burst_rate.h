// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <optional>

#include "atoll/core/deadline.h"

namespace atl::transport::tcp {

/// What short bursts tell of a rail's rate: a few bytes sent at once over a rail on which nothing was on its way, and acknowledged at once.
/// Such a burst takes a round trip and its bytes over the rate. The round trip is that of bursts that are next to nothing. One that takes
/// hardly longer tells that the rail is fast, however long that was; a late acknowledgement alone tells nothing, as the fastest of
/// several bursts counts. Pure: the time is an argument.
class BurstRate {
 public:
  using Time = Clock::time_point;

  static constexpr std::size_t kLeastBytes = std::size_t{16} << 10;  ///< that tell something

  /// The first bytes of a burst leave, or more of it.
  void begin(Time now) noexcept;
  void add(std::size_t bytes, Time now) noexcept;

  /// What has left is acknowledged as soon as it has come; with `add` again, no longer.
  void ask(Time now) noexcept;

  /// Whether the burst is to be followed by a question, so that something is learned.
  bool wants_question(Time now) const noexcept;
  /// Whether a question by itself is to tell the round trip.
  bool wants_round_trip(Time now) const noexcept;

  /// Rates between which several bursts in a row lie, of bytes per second; infinite where the round trip hides it.
  struct Bounds {
    double least;
    double most;
  };
  /// Nothing is on its way any more. Returns what the last bursts tell, when that is enough.
  std::optional<Bounds> end(Time now) noexcept;

  /// The rail was made anew, or better is known.
  void forget() noexcept { *this = {}; }

 private:
  static constexpr Bounds kNone{std::numeric_limits<double>::infinity(), 0};

  void note_round_trip(double seconds) noexcept;

  double round_trip_ = -1;  // seconds; negative: not known
  // The burst.
  Time first_{};
  Time last_{};
  std::size_t bytes_ = 0;
  bool is_asked_ = false;
  // The bursts in a row.
  Bounds bounds_ = kNone;
  int count_ = 0;
  bool has_told_ = false;
  Time asked_at_{};  // for the rate
  Time round_trip_at_{};
};

}  // namespace atl::transport::tcp
