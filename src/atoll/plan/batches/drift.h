// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

namespace atl::plan {

/// Computes the natural logarithm by the four basic operations alone, so that ranks on different processors get the
/// same bits. `value` must be finite and above 0.
double natural_log(double value);

/// Everything on which later results of a SpeedEstimate depend.
struct SpeedState {
  double factor = 1;
  double usual = 1;
  int windows = 0;  ///< since the averages started, up to the number at which their weights are constant
  double risen = 0;
  double fallen = 0;
  std::vector<double> residuals;  ///< the latest, oldest first
};

/// Estimates how slow a rank is relative to its measured cost while it trains: a moving average of the windows in which
/// each new one has the weight 1/5. A two-sided CUSUM of log(observed / usual), in units of its deviation (slack 0.5,
/// limit 5), distinguishes a change from noise; the usual ratio is a moving average in which each new window has the
/// weight 1/20. After a change both averages restart.
class SpeedEstimate {
 public:
  SpeedEstimate() = default;
  explicit SpeedEstimate(SpeedState state) : state_(std::move(state)) {}

  /// Adds a window. `ratio` is its median time divided by the unscaled cost, finite and above 0. Returns whether the
  /// speed has changed.
  bool observe(double ratio);

  /// 1 before the first window.
  double factor() const noexcept { return state_.factor; }
  const SpeedState& state() const noexcept { return state_; }

 private:
  double deviation() const;

  SpeedState state_;
};

}  // namespace atl::plan
