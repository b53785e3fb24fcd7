// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/drift.h"

#include <algorithm>
#include <cmath>

namespace atl::plan {
namespace {

constexpr double kWeight = 0.2;
constexpr double kUsualWeight = 0.05;
constexpr int kWindowsOfMean = 20;  // 1 / kUsualWeight: an average is the mean until its weight falls to its least
constexpr double kSlack = 0.5;
constexpr double kLimit = 5;
constexpr std::size_t kResiduals = 20;
constexpr std::size_t kFewResiduals = 5;
constexpr double kFirstDeviation = 0.05;  // used until there are a few residuals
constexpr double kMinDeviation = 0.005;
constexpr double kLn2 = 0.69314718055994530942;

}  // namespace

double natural_log(double value) {
  int exponent = 0;
  double mantissa = std::frexp(value, &exponent);  // in [0.5, 1)
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);  // ln(m) = 2 (z + z^3/3 + z^5/5 + ...)
  double sum = 0;
  for (int k = 21; k > 0; k -= 2) sum = sum * z * z + 1.0 / k;
  return exponent * kLn2 + 2 * z * sum;
}

// 1.4826 times the median distance from zero: a robust estimate of the standard deviation, despite a few outliers.
double SpeedEstimate::deviation() const {
  if (residuals_.size() < kFewResiduals) return kFirstDeviation;
  std::vector<double> distances;
  for (const double residual : residuals_) distances.push_back(std::abs(residual));
  std::sort(distances.begin(), distances.end());
  const std::size_t middle = distances.size() / 2;
  const double median = distances.size() % 2 == 1 ? distances[middle] : (distances[middle - 1] + distances[middle]) / 2;
  return std::max(kMinDeviation, 1.4826 * median);
}

bool SpeedEstimate::observe(double ratio) {
  if (windows_ == 0) {
    factor_ = ratio;
    usual_ = ratio;
    windows_ = 1;
    return false;
  }
  const double residual = natural_log(ratio / usual_);
  const double units = residual / deviation();
  risen_ = std::max(0.0, risen_ + units - kSlack);
  fallen_ = std::max(0.0, fallen_ - units - kSlack);
  if (risen_ > kLimit || fallen_ > kLimit) {
    factor_ = ratio;
    usual_ = ratio;
    windows_ = 1;
    risen_ = 0;
    fallen_ = 0;
    return true;
  }
  residuals_.push_back(residual);
  if (residuals_.size() > kResiduals) residuals_.erase(residuals_.begin());
  windows_ = std::min(windows_ + 1, kWindowsOfMean);
  factor_ += (ratio - factor_) * std::max(kWeight, 1.0 / windows_);
  usual_ += (ratio - usual_) * std::max(kUsualWeight, 1.0 / windows_);
  return false;
}

SpeedEstimate SpeedEstimate::of(const State& state) {
  SpeedEstimate estimate;
  estimate.factor_ = state.factor;
  estimate.usual_ = state.usual;
  estimate.windows_ = state.windows;
  estimate.risen_ = state.risen;
  estimate.fallen_ = state.fallen;
  estimate.residuals_ = state.residuals;
  return estimate;
}

}  // namespace atl::plan
