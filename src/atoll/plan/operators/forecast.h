// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atoll/plan/operators/envelope.h"

namespace atl::plan {

/// A rate, in bytes per second, measured until `time`.
struct SeenRate {
  double time = 0;
  double rate = 0;
};

/// The long-run rates of a link, from a record of it in bins of equal length.
class LinkPast {
 public:
  /// Throws Error(kInvalidArgument) for no bins, a length that is not above 0, and rates that are negative or infinite.
  LinkPast(double bin_seconds, std::vector<double> rates);

  double bin_seconds() const noexcept { return bin_seconds_; }
  double median() const noexcept { return quantile(0.5); }
  /// Returns the rate that this share of the bins does not exceed.
  double quantile(double share) const noexcept;
  /// Mean and deviation of the logarithms of the rates, with rates below 0.1 Mbit/s raised to that.
  double mean_log() const noexcept { return mean_; }
  double deviation_log() const noexcept { return deviation_; }
  /// Returns the correlation of one bin with the next, at least 0.
  double correlation() const noexcept { return correlation_; }
  /// Returns the rates `bins` bins after those bins, at most `count`, whose rates were closest to `rate` in ratio.
  std::vector<double> after(double rate, std::size_t bins, std::size_t count) const;

 private:
  double bin_seconds_;
  std::vector<double> rates_;
  std::vector<double> sorted_;
  double mean_ = 0;
  double deviation_ = 0;
  double correlation_ = 0;
};

/// last        the last measured rate, as if it stayed; if there is none, the median of the past
/// aged        the same, moved towards the median of the past as it ages, by the correlation
/// recent      all rates measured in the last 5 s, equally likely; if there are none, as long-run
/// ar1         a first-order autoregressive process of the logarithm: nine equally likely rates around `aged`, which
///             spread with age (Box and Jenkins, "Time series analysis: forecasting and control", 1970)
/// neighbours  what followed similar rates in the past, after as long as the last one is old (Lorenz, "Atmospheric
///             predictability as revealed by naturally occurring analogues", 1969); after 10 s as long-run
/// long-run    twenty quantiles of the past, whatever was measured
std::vector<std::string> forecasts();

/// Returns the likely rates at `now`. `seen` ascends in time and ends before `now`. Throws Error(kInvalidArgument) for
/// an unknown name.
std::vector<RateWeight> forecast(const std::string& name, const LinkPast& past, std::span<const SeenRate> seen,
                                 double now);

}  // namespace atl::plan
