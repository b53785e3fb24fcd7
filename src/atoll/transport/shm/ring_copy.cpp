// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/ring_copy.h"

#include <algorithm>
#include <chrono>

#include "atoll/core/copy.h"

namespace atl::transport {
namespace {

constexpr std::size_t kMeasuredFrom = 4096;  // below this size reading the clock costs more than it could save
constexpr std::uint64_t kTrialEvery = 256;   // windows
// A copy during which the thread was preempted is not representative, so a cost falls faster than it rises.
constexpr double kFall = 0.5;
constexpr double kRise = 0.05;
constexpr double kMaxRise = 4;            // times the known cost
constexpr double kStreamingMustSave = 3;  // the reader finds cached bytes sooner, and memory has less to do

/// The bytes of a trial: its first window only brings the ring's cache lines into the state in which this kind leaves
/// them.
constexpr std::uint64_t trial_bytes(std::size_t window_bytes) { return window_bytes + window_bytes / 4; }

}  // namespace

// A kind is kept for at least a whole trial, and until the other one is due for a trial or known to be cheaper.
RingCopy::Kind RingCopy::choose() const noexcept {
  const Kind better = cost_[kCached] > kStreamingMustSave * cost_[kStreaming] ? kStreaming : kCached;
  const Kind other = kind_ == kCached ? kStreaming : kCached;
  if (bytes_of_kind_ < trial_bytes(window_bytes_)) return kind_;
  if (cost_[other] == 0 || bytes_of_kind_ >= kTrialEvery * window_bytes_) return other;
  return better;
}

void RingCopy::operator()(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes < kMeasuredFrom) return copy_bytes(to, from, bytes);
  const Kind kind = choose();
  if (kind != kind_) bytes_of_kind_ = 0;
  kind_ = kind;
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  kind == kStreaming ? copy_bytes_streaming(to, from, bytes) : copy_bytes(to, from, bytes);
  const double cost =
      std::chrono::duration<double, std::nano>(Clock::now() - started).count() / static_cast<double>(bytes);
  bytes_of_kind_ += bytes;
  if (bytes_of_kind_ <= window_bytes_) return;
  double& known = cost_[kind];
  if (known == 0) known = cost;
  known += (cost < known ? kFall : kRise) * (std::min(cost, kMaxRise * known) - known);
}

}  // namespace atl::transport
