// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace atl::sim {
namespace {

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

std::chrono::nanoseconds time_of(double bytes, double bytes_per_s) noexcept {
  if (bytes_per_s <= 0) return {};
  return from_seconds(bytes / bytes_per_s);
}

Model::Model(DeviceKind kind, double speed, double copy_bytes_per_s, std::uint64_t seed)
    : kind_(std::move(kind)), speed_(speed), copy_bytes_per_s_(copy_bytes_per_s), random_(seed) {}

std::chrono::nanoseconds Model::operator_time(std::string_view name, double flops, double bytes,
                                              Clock::time_point now) {
  if (speed_ <= 0) return {};
  const auto known = kind_.operators.find(name);
  const Rates& rates = known == kind_.operators.end() ? kind_.usual : known->second;
  const double work = std::max({flops / rates.flops_per_s, bytes / rates.bytes_per_s, rates.full_s});
  const double seconds = (work + kind_.launch_s) / speed_;
  return from_seconds(seconds * slowness(seconds, now));
}

double Model::slowness(double busy_s, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  double factor = 1;
  if (kind_.jitter > 0) {
    factor = std::exp(std::normal_distribution<double>(-kind_.jitter * kind_.jitter / 2, kind_.jitter)(random_));
  }
  if (kind_.warm_after_s <= 0) return factor;
  // The device reaches half of its final warmth after ln 2 times the time constant.
  const double settles_s = kind_.warm_after_s / std::log(2.0);
  if (warmth_of_ != Clock::time_point{}) {
    warmth_ *= std::exp(-std::chrono::duration<double>(now - warmth_of_).count() / settles_s);
  }
  warmth_of_ = now;
  warmth_ = std::min(1.0, warmth_ + busy_s / settles_s);
  return factor / (1 - warmth_ * (1 - kind_.warm_speed));
}

std::chrono::nanoseconds Model::copy_time(std::size_t bytes, bool is_pinned) const noexcept {
  return time_of(static_cast<double>(bytes), copy_bytes_per_s_ * (is_pinned ? 1 : kind_.pageable));
}

}  // namespace atl::sim
