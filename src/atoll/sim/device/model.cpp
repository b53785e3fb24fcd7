// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/model.h"

#include <algorithm>
#include <cstdint>

namespace atl::sim {
namespace {

constexpr double kFlopsPerS = 10e9;
constexpr double kBytesPerS = 5e9;
constexpr double kFixedS = 5e-6;

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

std::chrono::nanoseconds Model::operator_time(double flops, double bytes) const noexcept {
  if (speed <= 0) return {};
  return from_seconds((std::max(flops / kFlopsPerS, bytes / kBytesPerS) + kFixedS) / speed);
}

std::chrono::nanoseconds Model::copy_time(std::size_t bytes) const noexcept {
  if (copy_bytes_per_s <= 0) return {};
  return from_seconds(static_cast<double>(bytes) / copy_bytes_per_s);
}

}  // namespace atl::sim
