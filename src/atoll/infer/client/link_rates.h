// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <mutex>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/client/estimator.h"
#include "atoll/infer/wire/messages.h"
#include "atoll/plan/operators/operators.h"

namespace atl::infer {

/// A time in seconds, as estimates take it.
inline double seconds_of(Clock::time_point when) {
  return std::chrono::duration<double>(when.time_since_epoch()).count();
}

/// The estimates of both directions of a link, up from the robot. Any thread.
class LinkRates {
 public:
  explicit LinkRates(EstimateOptions options = {}) : up_(options), down_(options) {}

  void sent(const BandwidthEstimate::Key& key, double bytes) {
    const std::lock_guard lock(mutex_);
    up_.sent(now(), key, bytes);
  }
  void acknowledged(const wire::Ack& ack) {
    const std::lock_guard lock(mutex_);
    up_.acknowledged(now(), {ack.inference, ack.tensor, ack.rows_begin}, wire::seconds(ack.elapsed_us),
                     static_cast<double>(ack.first_bytes));
  }
  void given_up(const BandwidthEstimate::Key& key, double gone) {
    const std::lock_guard lock(mutex_);
    up_.given_up(now(), key, gone);
  }
  void ended(std::uint64_t inference) {
    const std::lock_guard lock(mutex_);
    up_.ended(inference);
  }
  void received(const wire::Ack& ack) {
    const std::lock_guard lock(mutex_);
    down_.received(now(), static_cast<double>(ack.bytes), wire::seconds(ack.elapsed_us),
                   static_cast<double>(ack.first_bytes));
  }
  void round_trip(double seconds) {
    const std::lock_guard lock(mutex_);
    up_.round_trip(seconds);
  }
  /// `bytes` were spent on measuring.
  void probed(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    probe_bytes_ += bytes;
  }
  std::uint64_t probe_bytes() const {
    const std::lock_guard lock(mutex_);
    return probe_bytes_;
  }
  void lost() {
    const std::lock_guard lock(mutex_);
    up_.lost(now());
  }

  double up_rate() const {
    const std::lock_guard lock(mutex_);
    return up_.rate(now());
  }
  double up_age() const {
    const std::lock_guard lock(mutex_);
    return up_.age(now());
  }
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return !up_.has_outstanding();
  }
  std::vector<plan::RateWeight> likely_up(double horizon) const {
    const std::lock_guard lock(mutex_);
    return up_.likely(now(), horizon);
  }
  BandwidthEstimate::ForecastError forecast_error() const {
    const std::lock_guard lock(mutex_);
    return up_.forecast_error();
  }
  /// The rates of both directions and half a round trip. Down counts as fast as up until something has come down.
  plan::LinkCost link() const {
    const std::lock_guard lock(mutex_);
    plan::LinkCost link;
    link.up_bytes_per_second = up_.rate(now());
    link.down_bytes_per_second = std::isfinite(down_.age(now())) ? down_.rate(now()) : link.up_bytes_per_second;
    link.latency = up_.round_trip() / 2;
    return link;
  }

 private:
  static double now() { return seconds_of(Clock::now()); }

  mutable std::mutex mutex_;
  BandwidthEstimate up_;
  BandwidthEstimate down_;
  std::uint64_t probe_bytes_ = 0;
};

}  // namespace atl::infer
