// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "atoll/core/deadline.h"
#include "atoll/transport/address.h"

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

/// Decides which rail of a link carries the next bytes. Pure: the time is an argument.
///
/// Each rail has a rate, an exponentially weighted average of what was acknowledged over it while it was busy. The next
/// bytes go where they arrive first: (bytes on their way + these) / rate + latency. Two rules bound the effect of wrong
/// rates:
///  - a rail has at most about ten milliseconds of bytes on its way, so that wrong rates are corrected soon;
///  - a rail other than the best takes bytes only when they arrive before all rails together have carried everything
///    that waits, so that a slow rail never delays what a fast one would have carried in the same time.
/// A rail that is unused for that reason is probed now and then while the link is busy, to find out when it becomes
/// fast. With messages so small that no rail is ever busy, the rate is estimated from the time of each burst beyond a
/// round trip (BurstRate), until a busy rail gives a better measurement, and again when that measurement is old. When
/// one rail would take long for the rest of what waits, all rails share it. The rule of the predicted time is Mooncake
/// TENT's. Each call takes time proportional to the number of rails.
class RailScheduler {
 public:
  using Time = Clock::time_point;

  /// The estimate for a rail that was never measured.
  struct Expected {
    double bytes_per_second = 125e6;
    double latency_seconds = 0;
  };

  /// A rail begins to carry bytes, with nothing on its way. One that was measured before keeps its rate.
  void open(std::size_t rail, const Expected& expected, Time now) noexcept;
  void close(std::size_t rail) noexcept;

  /// The rail for the next bytes, and the maximum number of them.
  struct Turn {
    std::size_t rail;
    std::size_t bytes;
  };
  /// `waiting`: the number of bytes that wait, at least 1. `ready`: bit r is set when rail r takes bytes. Returns
  /// nothing when it is better to wait for an acknowledgement.
  std::optional<Turn> next(std::uint64_t waiting, unsigned ready) const noexcept;

  /// Returns the open rail of `ready` over which a few bytes arrive first, if any.
  std::optional<std::size_t> nearest(unsigned ready) const noexcept;

  void sent(std::size_t rail, std::size_t bytes, Time now) noexcept;
  void acknowledged(std::size_t rail, std::size_t bytes, Time now) noexcept;

  /// Returns whether a request for acknowledgement should go over the idle rail before anything else.
  bool wants_round_trip(std::size_t rail, Time now) const noexcept;
  /// Returns whether a request should follow what was sent over the rail: a few bytes that are acknowledged at once.
  bool wants_ack_request(std::size_t rail, Time now) const noexcept;
  /// Notes that such a request was sent.
  void ack_requested(std::size_t rail, std::size_t bytes, Time now) noexcept;

  /// Returns a rail of `ready` that should be probed, if any, and the number of bytes without meaning to send, perhaps
  /// 0; counts them as sent.
  std::optional<Turn> probe(Time now, unsigned ready) noexcept;

  double rate(std::size_t rail) const noexcept { return rails_[rail].rate; }  ///< bytes per second
  std::uint64_t on_its_way(std::size_t rail) const noexcept { return rails_[rail].on_its_way; }

  /// Returns the longest time that an open rail takes, at its rate, for what is on its way. Rails may share a path, so
  /// that bytes of one wait for those of another.
  double longest_seconds() const noexcept;

 private:
  struct Rail {
    bool is_open = false;
    bool is_measured = false;
    double rate = 0;
    double latency = 0;
    std::uint64_t on_its_way = 0;
    // The measurement under way: bytes acknowledged since `since`.
    Time since{};
    std::uint64_t bytes = 0;
    bool is_busy = false;  // enough was on its way all the time that the rail was never idle
    Time last_measured{};
    Time last_busy{};         // when a busy rail was measured
    double most = 0;          // upper limit for rates from bursts
    bool is_guessed = false;  // the rate is from bursts
    BurstRate burst;
  };

  static std::size_t turn_bytes(const Rail& rail) noexcept;
  static std::size_t share_of_rest(const Rail& rail, double rest, double all_seconds) noexcept;
  static bool is_sure(const Rail& rail, Time now) noexcept;
  static void guess(Rail& rail, const BurstRate::Bounds& bounds) noexcept;
  static double limit_bytes(const Rail& rail) noexcept;
  static double busy_bytes(const Rail& rail) noexcept;
  static double arrival_seconds(const Rail& rail, double bytes) noexcept;
  static void depart(Rail& rail, std::size_t bytes, Time now) noexcept;
  static void measure(Rail& rail, Time now) noexcept;

  std::array<Rail, kMaxRails> rails_{};
  Time last_sent_{};
};

}  // namespace atl::transport::tcp
