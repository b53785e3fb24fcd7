// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// The rates of a link as they were recorded, in bins of equal length, again and again from the beginning. Ways are
/// Lane::kUp and Lane::kDown; times are seconds from the first bin, at least 0.
class Trace {
 public:
  /// Bytes per second by bin; without `down`, both ways have the rates of `up`. Error(kInvalidArgument) for no bins, a
  /// length that is not above 0, rates that are negative or infinite, and unequal numbers of bins.
  Trace(double bin_seconds, std::vector<double> up, std::vector<double> down = {});

  double bin_seconds() const noexcept { return bin_seconds_; }
  double seconds() const noexcept { return bin_seconds_ * static_cast<double>(up_.rates.size()); }  ///< of one turn
  const std::vector<double>& rates(Lane way) const noexcept { return of(way).rates; }

  /// That the link carries between two times.
  double bytes(Lane way, double begin, double end) const;
  /// When the last of some bytes that go onto the link at `begin` is off it; infinite where all rates are 0.
  double end(Lane way, double begin, double bytes) const;
  /// The mean rate of the last whole bin that is over at `time`; before the first bin is over, of the last one.
  double rate_before(Lane way, double time) const;

  /// The link that an inference meets that begins at `begin`. The trace must outlive it.
  Channel channel(double begin, double latency, bool is_half_duplex) const;

 private:
  struct Way {
    std::vector<double> rates;
    std::vector<double> sums;  // bytes before each bin, and of a turn
  };
  const Way& of(Lane way) const noexcept { return way == Lane::kDown && !down_.rates.empty() ? down_ : up_; }
  Way way_of(std::vector<double> rates) const;
  double bytes_until(const Way& way, double time) const;  // of one turn

  double bin_seconds_;
  Way up_;
  Way down_;
};

}  // namespace atl::plan
