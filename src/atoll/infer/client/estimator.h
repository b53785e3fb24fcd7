// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "atoll/plan/operators/envelope.h"

namespace atl::infer {

struct EstimateOptions {
  double prior = 6.25e6;  ///< bytes per second until something is measured
  double recent = 0.5;    ///< seconds after which a measurement counts for 1 / e
  double memory = 5;     ///< seconds without measurements after which the last rate counts for 1 / e (an outdoor Wi-Fi)
  double burst = 0.002;  ///< messages handed over within so many seconds follow one another on the link
  double grace = 0.02;   ///< seconds more than the estimate explains that make no message overdue
  double change = 3;     ///< a measurement that is this many times off replaces what was measured before
  double least_bytes = 8'192;   ///< what less than this takes says how fast the link is at least
  double least_seconds = 2e-5;  ///< nothing is counted as quicker than this
};

/// How many bytes per second go through one direction of a link, from messages that go through it anyway. Pure: seconds of
/// any clock that does not go back come with each call. One thread at a time.
///
/// A message is measured by its receiver, from its first frame's arrival to its last one's; messages that were handed over
/// together also by the time between their acknowledgements. The estimate is all measured bytes over all measured seconds,
/// each weighted by its age, so that small messages count little; where the link has changed, only what came after
/// counts. When nothing is measured the estimate ages towards the median of the last minutes, never towards the last value,
/// and while a message is overdue it is at most what would explain that.
class BandwidthEstimate {
 public:
  /// What an acknowledgement says of a message; zeros for a probe.
  struct Key {
    std::uint64_t inference = 0;
    std::int32_t tensor = 0;
    std::int32_t rows_begin = 0;
    bool operator==(const Key&) const = default;
  };

  explicit BandwidthEstimate(EstimateOptions options = {});

  /// A message is handed to the link.
  void sent(double now, const Key& key, double bytes);
  /// It has arrived: `elapsed` seconds from its first frame, of `first_bytes`, to its last. One that was never sent is
  /// ignored.
  void acknowledged(double now, const Key& key, double elapsed, double first_bytes);
  /// The rest of a message is not sent, of which at most `gone` bytes have left.
  void given_up(double now, const Key& key, double gone);
  /// The other side is through with this inference: what of it has no acknowledgement gets none.
  void ended(std::uint64_t inference);
  /// A message of the other side has arrived here.
  void received(double now, double bytes, double elapsed, double first_bytes);
  /// A message of a few bytes went there and back.
  void round_trip(double seconds);
  /// The connection is gone, and what was under way with it.
  void lost(double now);

  /// Bytes per second; above 0.
  double rate(double now) const;
  /// What the rate may be `horizon` seconds from `now`: a few values with their weights, which add up to 1.
  std::vector<plan::RateWeight> likely(double now, double horizon) const;
  /// Seconds since the last measurement; infinite before the first.
  double age(double now) const;
  /// Whether a message is later than the estimate explains.
  bool is_overdue(double now) const;
  bool has_outstanding() const noexcept { return !outstanding_.empty(); }
  /// The median of the last minutes.
  double long_run() const;
  /// Of a message of a few bytes; the median of the last ones. 0 before the first.
  double round_trip() const;

  /// How far the estimate at the time a message was sent was from what it then got, relative to that.
  struct ForecastError {
    double median = 0;
    double high = 0;  ///< 90 % are below
    std::size_t messages = 0;
  };
  ForecastError forecast_error() const;

 private:
  struct Outstanding {
    Key key;
    double sent = 0;
    double bytes = 0;
    double forecast = 0;
    bool follows = false;  // the one before it, without a pause
  };

  void measured(double now, double bytes, double seconds, double forecast, bool follows);
  void remember_outage(double now, double bytes, double begin);
  void close_bin(std::int64_t bin);
  double aged(double now) const;
  double ceiling(double now) const;
  double seconds_of_follower(double now, double elapsed, double between) const;

  EstimateOptions options_;
  double bytes_ = 0;  // weighted by age at last_
  double seconds_ = 0;
  double last_ = -std::numeric_limits<double>::infinity();  // measurement
  double last_ack_ = -std::numeric_limits<double>::infinity();
  std::deque<Outstanding> outstanding_;
  double last_sent_ = -std::numeric_limits<double>::infinity();
  double burst_sent_ = 0;     // its first message
  double burst_counted_ = 0;  // seconds of it that have been measured
  std::int64_t bin_ = 0;      // that is being filled
  double bin_bytes_ = 0;
  double bin_seconds_ = 0;
  std::deque<double> history_;      // rates, one for each half second that has any
  std::deque<double> errors_;       // relative
  std::deque<double> ratios_;       // measured / forecast
  std::deque<double> round_trips_;  // seconds
};

}  // namespace atl::infer
