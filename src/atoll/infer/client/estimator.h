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
  double burst = 0.002;  ///< messages handed over within this many seconds follow one another on the link
  double grace = 0.02;   ///< seconds beyond the estimate after which a message is overdue
  double change = 3;     ///< a measurement that is off by this factor replaces what was measured before
  double least_bytes = 8'192;   ///< a smaller message gives only a lower bound of the rate
  double least_seconds = 2e-5;  ///< shorter times are counted as this
};

/// Estimates the bytes per second of one direction of a link from messages that use it anyway. Pure: each call passes
/// the time, in seconds of any monotonic clock. One thread at a time.
///
/// The receiver measures a message from the arrival of its first frame to that of its last; messages that were handed
/// over together are also measured by the time between their acknowledgements. The estimate is the sum of measured
/// bytes over the sum of measured seconds, both weighted by age, so that small messages count little. After the link
/// has changed, only later measurements count. Without measurements the estimate ages towards the median of the last
/// minutes, never towards the last value. While a message is overdue, the estimate is at most the rate that would
/// explain it.
class BandwidthEstimate {
 public:
  /// Identifies a message in its acknowledgement; zeros for a probe.
  struct Key {
    std::uint64_t inference = 0;
    std::int32_t tensor = 0;
    std::int32_t rows_begin = 0;
    bool operator==(const Key&) const = default;
  };

  explicit BandwidthEstimate(EstimateOptions options = {});

  /// A message was handed to the link.
  void sent(double now, const Key& key, double bytes);
  /// A message has arrived, `elapsed` seconds after its first frame, which had `first_bytes`. Ignored for a message
  /// that was never sent.
  void acknowledged(double now, const Key& key, double elapsed, double first_bytes);
  /// The rest of a message will not be sent; at most `gone` bytes of it have left.
  void given_up(double now, const Key& key, double gone);
  /// The other side has finished this inference: its unacknowledged messages will stay so.
  void ended(std::uint64_t inference);
  /// A message from the other side has arrived here.
  void received(double now, double bytes, double elapsed, double first_bytes);
  /// A message of a few bytes took `seconds` there and back.
  void round_trip(double seconds);
  /// The connection is lost, with everything in flight.
  void lost(double now);

  /// Bytes per second; positive.
  double rate(double now) const;
  /// The rates that are likely `horizon` seconds from `now`: a few values with weights that add up to 1.
  std::vector<plan::RateWeight> likely(double now, double horizon) const;
  /// Seconds since the last measurement; infinite before the first.
  double age(double now) const;
  /// Returns whether a message is later than the estimate explains.
  bool is_overdue(double now) const;
  bool has_outstanding() const noexcept { return !outstanding_.empty(); }
  /// The median rate of the last minutes.
  double long_run() const;
  /// Seconds of the round trip of a few bytes: the median of the last ones, 0 before the first.
  double round_trip() const;

  /// The relative error of the estimate at the time a message was sent, compared with the rate that the message got.
  struct ForecastError {
    double median = 0;
    double high = 0;  ///< the 90th percentile
    std::size_t messages = 0;
  };
  ForecastError forecast_error() const;

 private:
  struct Outstanding {
    Key key;
    double sent = 0;
    double bytes = 0;
    double forecast = 0;
    bool follows = false;  // the message before it without a pause
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
  double last_ = -std::numeric_limits<double>::infinity();  // time of the last measurement
  double last_ack_ = -std::numeric_limits<double>::infinity();
  std::deque<Outstanding> outstanding_;
  double last_sent_ = -std::numeric_limits<double>::infinity();
  double burst_sent_ = 0;     // when the burst's first message was sent
  double burst_counted_ = 0;  // seconds of the burst that have been measured
  std::int64_t bin_ = 0;      // the one being filled
  double bin_bytes_ = 0;
  double bin_seconds_ = 0;
  std::deque<double> history_;      // rates, one for each half second that has any
  std::deque<double> errors_;       // relative
  std::deque<double> ratios_;       // measured / forecast
  std::deque<double> round_trips_;  // seconds
};

}  // namespace atl::infer
