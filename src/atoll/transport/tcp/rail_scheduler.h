// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "atoll/core/deadline.h"
#include "atoll/transport/address.h"
#include "atoll/transport/tcp/burst_rate.h"

namespace atl::transport::tcp {

/// Decides which rail of a link carries the next bytes. Pure: the time is an argument.
///
/// Each rail has a rate, an exponentially weighted average of what was acknowledged over it while it was busy. The next bytes go where they
/// arrive first: (bytes on their way + these) / rate + latency. Two rules keep that honest:
///  - a rail has at most about ten milliseconds of bytes on its way, so that wrong rates are put right soon;
///  - a rail other than the best takes bytes only when they arrive before all rails together have carried everything that waits, so that a
///    slow rail never holds up what a fast one would have carried meanwhile.
/// A rail that is unused for that reason is probed now and then while the link is busy, so that one that has become fast is found.
/// Messages so small that no rail is ever busy tell the rate by what each burst takes beyond a round trip (BurstRate), until a busy rail
/// tells it better, and again when that is long ago. Where one rail would take long for the rest of what waits, all share it.
/// The rule of the predicted time is Mooncake TENT's. Each call takes time proportional to the number of rails.
class RailScheduler {
 public:
  using Time = Clock::time_point;

  /// What is known of a rail that was never measured.
  struct Expected {
    double bytes_per_second = 125e6;
    double latency_seconds = 0;
  };

  /// A rail begins to carry bytes, with nothing on its way. One that was measured before keeps its rate.
  void open(std::size_t rail, const Expected& expected, Time now) noexcept;
  void close(std::size_t rail) noexcept;

  /// Where bytes go next, and how many of them at most.
  struct Turn {
    std::size_t rail;
    std::size_t bytes;
  };
  /// `waiting`: how many bytes wait, at least 1. `ready`: bit r is set when rail r takes bytes. Nothing: better wait for an acknowledgement.
  std::optional<Turn> next(std::uint64_t waiting, unsigned ready) const noexcept;

  /// The open rail of `ready` over which a few bytes arrive first, whatever is on its way; nothing when none is ready.
  std::optional<std::size_t> nearest(unsigned ready) const noexcept;

  void sent(std::size_t rail, std::size_t bytes, Time now) noexcept;
  void acknowledged(std::size_t rail, std::size_t bytes, Time now) noexcept;

  /// Whether a question is to go over the rail, on which nothing is on its way, before anything else.
  bool wants_round_trip(std::size_t rail, Time now) const noexcept;
  /// Whether what was sent over the rail is to be followed by a question: a few bytes that ask for an acknowledgement at once.
  bool wants_question(std::size_t rail, Time now) const noexcept;
  /// Such bytes were sent.
  void asked(std::size_t rail, std::size_t bytes, Time now) noexcept;

  /// A rail of `ready` that is to be sent so many bytes without meaning, perhaps none, and that counts as done; or nothing.
  std::optional<Turn> probe(Time now, unsigned ready) noexcept;

  double rate(std::size_t rail) const noexcept { return rails_[rail].rate; }  ///< bytes per second
  std::uint64_t on_its_way(std::size_t rail) const noexcept { return rails_[rail].on_its_way; }

  /// How long what is on its way takes, at its rate, on the open rail where that is longest. Rails may share a path, so that
  /// bytes of one wait for those of another.
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
    bool is_busy = false;  // all the time there was enough on its way that the rail was never idle
    Time last_measured{};
    Time last_busy{};         // that a busy rail told the rate
    double most = 0;          // rate that bursts may tell
    bool is_guessed = false;  // by bursts
    BurstRate burst;
  };

  static std::size_t turn_bytes(const Rail& rail) noexcept;
  static std::size_t share_of_rest(const Rail& rail, double rest, double all_seconds) noexcept;
  static bool is_sure(const Rail& rail, Time now) noexcept;
  static void guess(Rail& rail, const BurstRate::Bounds& told) noexcept;
  static double limit_bytes(const Rail& rail) noexcept;
  static double busy_bytes(const Rail& rail) noexcept;
  static double arrival_seconds(const Rail& rail, double bytes) noexcept;
  static void depart(Rail& rail, std::size_t bytes, Time now) noexcept;
  static void measure(Rail& rail, Time now) noexcept;

  std::array<Rail, kMaxRails> rails_{};
  Time last_sent_{};
};

}  // namespace atl::transport::tcp
