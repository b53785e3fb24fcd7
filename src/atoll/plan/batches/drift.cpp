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
  if (state_.residuals.size() < kFewResiduals) return kFirstDeviation;
  std::vector<double> distances;
  for (const double residual : state_.residuals) distances.push_back(std::abs(residual));
  std::sort(distances.begin(), distances.end());
  const std::size_t middle = distances.size() / 2;
  const double median = distances.size() % 2 == 1 ? distances[middle] : (distances[middle - 1] + distances[middle]) / 2;
  return std::max(kMinDeviation, 1.4826 * median);
}

bool SpeedEstimate::observe(double ratio) {
  auto& [factor, usual, windows, risen, fallen, residuals] = state_;
  const bool is_first = windows == 0;
  const double residual = natural_log(ratio / usual);
  const double units = residual / deviation();
  risen = std::max(0.0, risen + units - kSlack);
  fallen = std::max(0.0, fallen - units - kSlack);
  if (is_first || risen > kLimit || fallen > kLimit) {
    state_ = {ratio, ratio, 1, 0, 0, std::move(residuals)};
    return !is_first;
  }
  residuals.push_back(residual);
  if (residuals.size() > kResiduals) residuals.erase(residuals.begin());
  windows = std::min(windows + 1, kWindowsOfMean);
  factor += (ratio - factor) * std::max(kWeight, 1.0 / windows);
  usual += (ratio - usual) * std::max(kUsualWeight, 1.0 / windows);
  return false;
}

}  // namespace atl::plan
