// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "atoll/core/deadline.h"

namespace atl::transport::tcp {

/// What short bursts tell of a rail's rate: a few bytes sent at once, and acknowledged at once. Such a burst takes a round trip and its bytes
/// over the rate, and the time of what was ahead of it. The round trip is that of bursts that are next to nothing. One that takes hardly
/// longer tells that the rail is fast, however long that was; a late acknowledgement alone tells nothing, as the fastest of several bursts
/// counts. Pure: the time is an argument.
class BurstRate {
 public:
  using Time = Clock::time_point;

  static constexpr std::size_t kMinBytes = std::size_t{16} << 10;  ///< that tell something

  /// Bytes leave behind so many that are on their way. They are of the burst, or begin one, unless it waits for an answer.
  void add(std::size_t bytes, std::uint64_t ahead, Time now) noexcept;

  /// What the last `add` told of is a question, so that all that has left is acknowledged as soon as it has come.
  void ask(Time now) noexcept;

  /// Whether the burst is to be followed by a question, so that something is learned.
  bool wants_question(Time now) const noexcept;
  /// Whether a question by itself is to tell the round trip.
  bool wants_round_trip(Time now) const noexcept;
  bool knows_round_trip() const noexcept { return round_trip_ >= 0; }

  /// Rates between which several bursts in a row lie, of bytes per second; infinite where the round trip hides it.
  struct Bounds {
    double least;
    double most;
  };
  /// Bytes are no longer on their way. Returns what the last bursts tell, when that is enough.
  std::optional<Bounds> acknowledged(std::size_t bytes, Time now) noexcept;

  /// The rail was made anew, or better is known.
  void forget() noexcept { *this = {}; }

 private:
  static constexpr Bounds kNone{std::numeric_limits<double>::infinity(), 0};

  std::optional<Bounds> end(Time now) noexcept;
  void note_round_trip(double seconds) noexcept;

  double round_trip_ = -1;  // seconds; negative: not known
  // The burst.
  Time first_{};
  Time last_{};
  std::size_t bytes_ = 0;
  std::uint64_t ahead_ = 0;
  std::uint64_t left_ = 0;  // of both, on their way
  bool is_asked_ = false;
  // The bursts in a row.
  Bounds bounds_ = kNone;
  int count_ = 0;
  bool has_told_ = false;
  Time asked_at_{};  // for the rate
  Time round_trip_at_{};
};

}  // namespace atl::transport::tcp
