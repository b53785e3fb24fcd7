// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr double kMinRate = 12'500;  // keeps the logarithm finite
constexpr double kRecentSeconds = 5;
constexpr double kMaxAge = 10;  // seconds after which a rate is ignored
constexpr int kQuantiles = 20;
// The midpoints of nine equally likely parts of the normal distribution.
constexpr std::array<double, 9> kNormal = {-1.5932, -0.9674, -0.5895, -0.2822, 0, 0.2822, 0.5895, 0.9674, 1.5932};

double log_rate(double rate) { return std::log(std::max(rate, kMinRate)); }

std::vector<RateWeight> long_run(const LinkPast& past) {
  std::vector<RateWeight> likely;
  for (int i = 0; i < kQuantiles; ++i) likely.push_back({past.quantile((i + 0.5) / kQuantiles), 1});
  return likely;
}

std::vector<RateWeight> recent(const LinkPast& past, std::span<const SeenRate> seen, double now) {
  std::vector<RateWeight> likely;
  for (const SeenRate& each : seen) {
    if (each.time >= now - kRecentSeconds) likely.push_back({each.rate, 1});
  }
  return likely.empty() ? long_run(past) : likely;
}

// The age in bins, from the middle of the measurement.
double age_of(const SeenRate& last, const LinkPast& past, double now) {
  return std::max(0.0, now - last.time) / past.bin_seconds() + 0.5;
}

std::vector<RateWeight> around(const LinkPast& past, const SeenRate& last, double now, bool is_spread) {
  const double kept = std::pow(past.correlation(), age_of(last, past, now));
  if (!is_spread) {
    const double middle = log_rate(past.median());
    return {{std::exp(middle + kept * (log_rate(last.rate) - middle)), 1}};
  }
  const double mean = past.mean_log() + kept * (log_rate(last.rate) - past.mean_log());
  const double deviation = past.deviation_log() * std::sqrt(1 - kept * kept);
  std::vector<RateWeight> likely;
  for (const double each : kNormal) likely.push_back({std::exp(mean + each * deviation), 1});
  return likely;
}

std::vector<RateWeight> neighbours(const LinkPast& past, const SeenRate& last, double now) {
  constexpr std::size_t kCount = 40;
  if (now - last.time > kMaxAge) return long_run(past);
  const auto bins = static_cast<std::size_t>(std::floor(age_of(last, past, now) + 0.5));
  std::vector<RateWeight> likely;
  for (const double rate : past.after(last.rate, std::max<std::size_t>(1, bins), kCount)) likely.push_back({rate, 1});
  return likely.empty() ? long_run(past) : likely;
}

}  // namespace

LinkPast::LinkPast(double bin_seconds, std::vector<double> rates)
    : bin_seconds_(bin_seconds), rates_(std::move(rates)), sorted_(rates_) {
  if (!(std::isfinite(bin_seconds) && bin_seconds > 0)) {
    refuse("the bins of a link's past last " + number(bin_seconds) + " s: give a length above 0");
  }
  if (rates_.empty()) refuse("a link's past has no bins: give at least one rate");
  for (const double rate : rates_) require_amount("a rate of a link's past", rate);
  std::sort(sorted_.begin(), sorted_.end());
  const auto count = static_cast<double>(rates_.size());
  for (const double rate : rates_) mean_ += log_rate(rate) / count;
  double variance = 0;
  double covariance = 0;
  for (std::size_t i = 0; i < rates_.size(); ++i) {
    const double own = log_rate(rates_[i]) - mean_;
    variance += own * own / count;
    if (i > 0) covariance += own * (log_rate(rates_[i - 1]) - mean_) / (count - 1);
  }
  deviation_ = std::sqrt(variance);
  correlation_ = variance > 0 ? std::clamp(covariance / variance, 0.0, 1.0) : 1;
}

double LinkPast::quantile(double share) const noexcept {
  const auto last = static_cast<double>(sorted_.size() - 1);
  const double place = std::clamp(std::ceil(share * static_cast<double>(sorted_.size())) - 1, 0.0, last);
  return sorted_[static_cast<std::size_t>(place)];
}

std::vector<double> LinkPast::after(double rate, std::size_t bins, std::size_t count) const {
  if (bins >= rates_.size()) return {};
  std::vector<std::pair<double, std::size_t>> nearest;
  for (std::size_t i = 0; i + bins < rates_.size(); ++i) {
    nearest.emplace_back(std::abs(log_rate(rates_[i]) - log_rate(rate)), i);
  }
  count = std::min(count, nearest.size());
  const auto end = nearest.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(nearest.begin(), end, nearest.end());
  std::vector<double> result;
  for (auto each = nearest.begin(); each != end; ++each) result.push_back(rates_[each->second + bins]);
  return result;
}

std::vector<std::string> forecasts() { return {"last", "aged", "recent", "ar1", "neighbours", "long-run"}; }

std::vector<RateWeight> forecast(const std::string& name, const LinkPast& past, std::span<const SeenRate> seen,
                                 double now) {
  if (name == "long-run") return long_run(past);
  if (name == "recent") return recent(past, seen, now);
  if (name == "last" || name == "aged") {
    if (seen.empty()) return {{past.median(), 1}};
    if (name == "last") return {{seen.back().rate, 1}};
    return around(past, seen.back(), now, false);
  }
  if (name == "ar1") return seen.empty() ? long_run(past) : around(past, seen.back(), now, true);
  if (name == "neighbours") return seen.empty() ? long_run(past) : neighbours(past, seen.back(), now);
  refuse("the forecast \"" + name + "\" is not known: give one of " + joined(forecasts()));
}

}  // namespace atl::plan
