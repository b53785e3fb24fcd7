// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace atl::plan {

/// The natural logarithm from the four basic operations, so that ranks on unlike processors get the same bits. `value`
/// must be finite and above 0.
double natural_log(double value);

/// How slow one rank is, compared with its measured cost, while it trains: an average of the windows that weighs each
/// new one with a fifth. A two-sided CUSUM of log(observed / usual), in units of its deviation (slack 0.5, limit 5),
/// tells a change from noise; what is usual is an average that weighs each new window with a twentieth. After a
/// change both averages start anew.
class SpeedEstimate {
 public:
  /// `ratio` is the window's median time over what the unscaled cost says, finite and above 0. Returns whether the
  /// speed has changed.
  bool observe(double ratio);

  /// 1 before the first window.
  double factor() const noexcept { return factor_; }

  /// Everything that decides what it says next.
  struct State {
    double factor = 1;
    double usual = 1;
    int windows = 0;  // since the averages began, up to the number at which their weights no longer change
    double risen = 0;
    double fallen = 0;
    std::vector<double> residuals;  // the latest, oldest first
  };
  State state() const { return {factor_, usual_, windows_, risen_, fallen_, residuals_}; }
  static SpeedEstimate of(const State& state);

 private:
  double deviation() const;

  double factor_ = 1;
  double usual_ = 1;
  int windows_ = 0;
  double risen_ = 0;
  double fallen_ = 0;
  std::vector<double> residuals_;
};

}  // namespace atl::plan
