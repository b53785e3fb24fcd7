// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "atoll/core/deadline.h"

namespace atl::transport::tcp {

/// Bounds a rail's rate from short bursts: a few bytes sent at once, and acknowledged at once. Such a burst takes a
/// round trip plus the time for its bytes, and for those ahead of it, at the rail's rate. The round trip is that of
/// tiny bursts. A burst that takes hardly longer shows that the rail is fast, however long the round trip; a late
/// acknowledgement alone shows nothing, as the fastest of several bursts counts. Pure: the time is an argument.
class BurstRate {
 public:
  using Time = Clock::time_point;

  static constexpr std::size_t kMinBytes = std::size_t{16} << 10;  ///< of a burst that counts

  /// Notes bytes sent after `ahead` bytes that are on their way. They extend the burst or start one, unless the burst
  /// waits for its acknowledgement.
  void add(std::size_t bytes, std::uint64_t ahead, Time now) noexcept;

  /// Notes that the last added bytes request an acknowledgement, so that everything sent is acknowledged on arrival.
  void request_ack(Time now) noexcept;

  /// Returns whether a request for acknowledgement should follow the burst, to learn the rate.
  bool wants_ack_request(Time now) const noexcept;
  /// Returns whether a request by itself should be sent, to learn the round trip.
  bool wants_round_trip(Time now) const noexcept;
  bool knows_round_trip() const noexcept { return round_trip_ >= 0; }

  /// The range of rates of several bursts in a row, in bytes per second; infinite where the round trip hides them.
  struct Bounds {
    double least;
    double most;
  };
  /// Notes bytes that are no longer on their way. Returns the bounds once enough bursts are known.
  std::optional<Bounds> acknowledged(std::size_t bytes, Time now) noexcept;

  /// Starts over: the rail was opened again, or a better measurement is known.
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
  bool ack_requested_ = false;
  // The bursts in a row.
  Bounds bounds_ = kNone;
  int count_ = 0;
  bool has_reported_ = false;
  Time requested_at_{};  // for the rate
  Time round_trip_at_{};
};

}  // namespace atl::transport::tcp
