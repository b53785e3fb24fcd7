// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// The recorded rates of a link, in bins of equal length, repeated from the beginning. Directions are Lane::kUp and
/// Lane::kDown; times are seconds from the first bin, at least 0.
class Trace {
 public:
  /// Takes bytes per second by bin; without `down`, both directions have the rates of `up`. Throws
  /// Error(kInvalidArgument) for no bins, a length that is not above 0, rates that are negative or infinite, and
  /// unequal numbers of bins.
  Trace(double bin_seconds, std::vector<double> up, std::vector<double> down = {});

  double bin_seconds() const noexcept { return bin_seconds_; }
  double seconds() const noexcept { return bin_seconds_ * static_cast<double>(up_.rates.size()); }  ///< of one pass
  const std::vector<double>& rates(Lane way) const noexcept { return of(way).rates; }

  /// Returns the bytes that the link carries between two times.
  double bytes(Lane way, double begin, double end) const;
  /// Returns when the last of `bytes` leaves the link if they enter it at `begin`; infinite if all rates are 0.
  double end(Lane way, double begin, double bytes) const;
  /// Returns the mean rate of the last whole bin before `time`; before the first bin is over, that of the last bin of
  /// the trace.
  double rate_before(Lane way, double time) const;

  /// Returns the link as an inference that begins at `begin` sees it. The trace must outlive it.
  Channel channel(double begin, double latency, bool is_half_duplex) const;

 private:
  struct Way {
    std::vector<double> rates;
    std::vector<double> sums;  // bytes before each bin, and of a pass
  };
  const Way& of(Lane way) const noexcept { return way == Lane::kDown && !down_.rates.empty() ? down_ : up_; }
  Way way_of(std::vector<double> rates) const;
  double bytes_until(const Way& way, double time) const;  // of one pass

  double bin_seconds_;
  Way up_;
  Way down_;
};

}  // namespace atl::plan
