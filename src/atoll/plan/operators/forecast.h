// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atoll/plan/operators/envelope.h"

namespace atl::plan {

/// A rate, in bytes per second, that was seen until `time`.
struct SeenRate {
  double time = 0;
  double rate = 0;
};

/// What rates a link has in the long run: from a record of it, in bins of equal length.
class LinkPast {
 public:
  /// Error(kInvalidArgument) for no bins, a length that is not above 0, and rates that are negative or infinite.
  LinkPast(double bin_seconds, std::vector<double> rates);

  double bin_seconds() const noexcept { return bin_seconds_; }
  double median() const noexcept;
  /// That share of the bins has at most this rate.
  double quantile(double share) const noexcept;
  /// Of the logarithms of the rates, of which those below 0.1 Mbit/s count as that.
  double mean_log() const noexcept { return mean_; }
  double deviation_log() const noexcept { return deviation_; }
  /// The correlation of one bin with the next, at least 0.
  double correlation() const noexcept { return correlation_; }
  /// What followed `bins` bins later on those bins, `count` at most, whose rates were most like `rate`, in ratio.
  std::vector<double> after(double rate, std::size_t bins, std::size_t count) const;

 private:
  double bin_seconds_;
  std::vector<double> rates_;
  std::vector<double> sorted_;
  double mean_ = 0;
  double deviation_ = 0;
  double correlation_ = 0;
};

/// last        the last rate that was seen, as if it stayed; the median of the past where none was
/// aged        the same, drawn towards the median of the past as it ages, by the correlation
/// recent      all rates that were seen in the last 5 s, equally likely; else as long-run
/// ar1         a first-order autoregressive process of the logarithm: nine equally likely rates around `aged`, which
///             spread with age (Box and Jenkins, "Time series analysis: forecasting and control", 1970)
/// neighbours  what followed in the past on rates like the last one, as much later as it is old (Lorenz, "Atmospheric
///             predictability as revealed by naturally occurring analogues", 1969); after 10 s as long-run
/// long-run    twenty quantiles of the past, whatever was seen
std::vector<std::string> forecasts();

/// How likely which rate is at `now`. `seen` ascends in time and ends before `now`. Error(kInvalidArgument) for a name
/// that is not known.
std::vector<RateWeight> forecast(const std::string& name, const LinkPast& past, std::span<const SeenRate> seen,
                                 double now);

}  // namespace atl::plan
