// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/ring_copy.h"

#include <chrono>

#include "atoll/core/copy.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMeasuredFrom = 4096;  // below, a clock reading would cost more than it could save
constexpr std::uint32_t kTryOtherEvery = 64;
constexpr double kSmoothing = 0.25;
constexpr double kStreamingMustSave = 1.5;  // the reader finds cached bytes sooner, so a tie goes to the cache

}  // namespace

RingCopy::Kind RingCopy::choose() noexcept {
  const Kind better = cost_[kCached] > kStreamingMustSave * cost_[kStreaming] ? kStreaming : kCached;
  if (++copies_ % kTryOtherEvery == 0) return better == kCached ? kStreaming : kCached;
  return better;
}

void RingCopy::operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes < kMeasuredFrom) return copy_bytes(to, from, bytes);
  using Clock = std::chrono::steady_clock;
  const Kind kind = cost_[kStreaming] == 0 ? kStreaming : choose();
  const auto started = Clock::now();
  kind == kStreaming ? copy_bytes_streaming(to, from, bytes) : copy_bytes(to, from, bytes);
  const double cost =
      std::chrono::duration<double, std::nano>(Clock::now() - started).count() / static_cast<double>(bytes);
  cost_[kind] = cost_[kind] == 0 ? cost : cost_[kind] + kSmoothing * (cost - cost_[kind]);
}

}  // namespace atl::transport
