// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/estimator.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace atl::infer {
namespace {

constexpr double kBinSeconds = 0.5;
constexpr std::size_t kBins = 600;
constexpr std::size_t kForecasts = 256;
constexpr std::size_t kRoundTrips = 32;
constexpr std::size_t kMaxOutstanding = 4096;
constexpr double kMinRate = 1;
constexpr int kMaxOutageBins = 20;
// Used before any forecast could be compared with a measurement.
constexpr std::array<double, 5> kUsualRatios = {0.5, 0.8, 1, 1.2, 1.5};
constexpr std::array<double, 5> kQuantiles = {0.1, 0.3, 0.5, 0.7, 0.9};

double quantile_of(const std::deque<double>& values, double quantile) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto index = static_cast<std::size_t>(std::lround(quantile * static_cast<double>(sorted.size() - 1)));
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index), sorted.end());
  return sorted[index];
}

void push(std::deque<double>& values, double value, std::size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

}  // namespace

BandwidthEstimate::BandwidthEstimate(EstimateOptions options) : options_(options) {}

void BandwidthEstimate::sent(double now, const Key& key, double bytes) {
  if (outstanding_.size() == kMaxOutstanding) outstanding_.pop_front();
  const bool follows = !outstanding_.empty() && now - last_sent_ <= options_.burst;
  outstanding_.push_back({key, now, bytes, rate(now), follows});
  last_sent_ = now;
}

void BandwidthEstimate::ended(std::uint64_t inference) {
  std::erase_if(outstanding_, [&](const Outstanding& each) { return each.key.inference == inference; });
}

// Some of what has left may still be queued in the kernel. So this rate is an upper bound, which counts where the
// estimate is higher.
void BandwidthEstimate::given_up(double now, const Key& key, double gone) {
  const auto found =
      std::find_if(outstanding_.begin(), outstanding_.end(), [&](const Outstanding& each) { return each.key == key; });
  if (found == outstanding_.end()) return;
  const Outstanding message = *found;
  outstanding_.erase(found);
  const double begin = std::max(message.sent, last_ack_);
  const double seconds = now - begin - round_trip();
  if (seconds <= options_.grace || gone / seconds >= aged(now)) return;
  remember_outage(now, gone, begin);
  measured(now, std::max(gone, kMinRate), seconds, message.forecast, false);
}

void BandwidthEstimate::acknowledged(double now, const Key& key, double elapsed, double first_bytes) {
  const auto found =
      std::find_if(outstanding_.begin(), outstanding_.end(), [&](const Outstanding& each) { return each.key == key; });
  if (found == outstanding_.end()) return;
  const Outstanding message = *found;
  // Messages arrive in order: earlier ones that have no acknowledgement will not get one.
  outstanding_.erase(outstanding_.begin(), found + 1);
  remember_outage(now, message.bytes, std::max(message.sent, last_ack_));
  const bool follows = message.follows && std::isfinite(last_ack_);
  const double seconds = follows ? seconds_of_follower(now, elapsed, now - last_ack_) : elapsed;
  last_ack_ = now;
  if (!follows) {
    burst_sent_ = message.sent;
    burst_counted_ = 0;
  }
  burst_counted_ += seconds;
  const double bytes = follows ? message.bytes : message.bytes - first_bytes;
  if (bytes >= options_.least_bytes) {
    measured(now, bytes, seconds, message.forecast, follows);
    return;
  }
  const double trip = std::max(now - message.sent, options_.least_seconds);
  if (message.bytes / trip > rate(now)) measured(now, message.bytes, trip, 0, false);
}

void BandwidthEstimate::received(double now, double bytes, double elapsed, double first_bytes) {
  if (bytes - first_bytes >= options_.least_bytes) {
    measured(now, bytes - first_bytes, elapsed, rate(now), false);
  }
}

void BandwidthEstimate::round_trip(double seconds) { push(round_trips_, seconds, kRoundTrips); }

void BandwidthEstimate::lost(double now) {
  if (!outstanding_.empty()) {
    remember_outage(now, outstanding_.front().bytes, std::max(outstanding_.front().sent, last_ack_));
  }
  outstanding_.clear();
}

double BandwidthEstimate::rate(double now) const { return std::max(kMinRate, std::min(aged(now), ceiling(now))); }

std::vector<plan::RateWeight> BandwidthEstimate::likely(double now, double horizon) const {
  const double rate_now = rate(now);
  const double trust = is_overdue(now) ? 1 : std::exp(-(std::min(age(now), 1e6) + horizon) / options_.memory);
  std::vector<plan::RateWeight> rates;
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
    const double ratio = ratios_.size() < kUsualRatios.size() ? kUsualRatios[i] : quantile_of(ratios_, kQuantiles[i]);
    rates.push_back({std::max(kMinRate, rate_now * ratio), trust / 5});
  }
  for (const double quantile : kQuantiles) {
    const double past = history_.empty() ? options_.prior : quantile_of(history_, quantile);
    rates.push_back({std::max(kMinRate, past), (1 - trust) / 5});
  }
  return rates;
}

double BandwidthEstimate::age(double now) const { return now - last_; }

bool BandwidthEstimate::is_overdue(double now) const { return ceiling(now) < aged(now); }

double BandwidthEstimate::long_run() const { return history_.empty() ? options_.prior : quantile_of(history_, 0.5); }

double BandwidthEstimate::round_trip() const { return round_trips_.empty() ? 0 : quantile_of(round_trips_, 0.5); }

BandwidthEstimate::ForecastError BandwidthEstimate::forecast_error() const {
  if (errors_.empty()) return {};
  return {quantile_of(errors_, 0.5), quantile_of(errors_, 0.9), errors_.size()};
}

void BandwidthEstimate::measured(double now, double bytes, double seconds, double forecast, bool follows) {
  seconds = std::max(seconds, options_.least_seconds);
  double weight = std::isfinite(last_) ? std::exp(-std::max(0.0, now - last_) / options_.recent) : 0;
  const double got = bytes / seconds;
  if (!follows && seconds_ > 0) {
    const double before = bytes_ / seconds_;
    if (got > before * options_.change || got * options_.change < before) weight = 0;
  }
  bytes_ = bytes_ * weight + bytes;
  seconds_ = seconds_ * weight + seconds;
  last_ = now;
  close_bin(static_cast<std::int64_t>(std::floor(now / kBinSeconds)));
  bin_bytes_ += bytes;
  bin_seconds_ += seconds;
  if (forecast <= 0 || follows) return;
  push(errors_, std::abs(forecast - got) / got, kForecasts);
  push(ratios_, got / forecast, kForecasts);
}

// Half seconds in which a message made no progress belong to the link's history.
void BandwidthEstimate::remember_outage(double now, double bytes, double begin) {
  const double waited = now - begin - round_trip();
  if (waited <= kBinSeconds || bytes / waited >= aged(now)) return;
  const int bins = static_cast<int>(std::min(waited / kBinSeconds, static_cast<double>(kMaxOutageBins)));
  for (int i = 0; i < bins; ++i) push(history_, bytes / waited, kBins);
}

void BandwidthEstimate::close_bin(std::int64_t bin) {
  if (bin == bin_) return;
  if (bin_seconds_ > 0) push(history_, bin_bytes_ / bin_seconds_, kBins);
  bin_ = bin;
  bin_bytes_ = 0;
  bin_seconds_ = 0;
}

// Rates span orders of magnitude, so they are interpolated geometrically.
double BandwidthEstimate::aged(double now) const {
  const double past = long_run();
  if (seconds_ <= 0) return past;
  const double weight = std::exp(-std::max(0.0, now - last_) / options_.memory);
  return std::exp(weight * std::log(std::max(kMinRate, bytes_ / seconds_)) +
                  (1 - weight) * std::log(std::max(kMinRate, past)));
}

// Acknowledgements that come together tell nothing about the time between them: the whole burst has taken the time
// since it was handed over, less a round trip.
double BandwidthEstimate::seconds_of_follower(double now, double elapsed, double between) const {
  return std::max({elapsed, between, now - burst_sent_ - round_trip() - burst_counted_});
}

// If the link were faster than this, the oldest message would have been acknowledged.
double BandwidthEstimate::ceiling(double now) const {
  if (outstanding_.empty()) return std::numeric_limits<double>::infinity();
  const Outstanding& oldest = outstanding_.front();
  const double waited = now - std::max(oldest.sent, last_ack_) - 2 * round_trip() - options_.grace;
  return waited <= 0 ? std::numeric_limits<double>::infinity() : oldest.bytes / waited;
}

}  // namespace atl::infer
