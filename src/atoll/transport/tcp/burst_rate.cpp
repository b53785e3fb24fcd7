// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/burst_rate.h"

#include <algorithm>
#include <utility>

namespace atl::transport::tcp {

namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr int kInARow = 8;
constexpr std::size_t kNextToNothing = 256;  // bytes
constexpr auto kRoundTripPause = milliseconds(2000);
constexpr auto kAckRequestPause = milliseconds(100);      // once bursts have bounded the rate
constexpr auto kAtOnce = std::chrono::microseconds(200);  // between two writes of one burst
constexpr double kRoundTripWeight = 0.25;
constexpr double kHidden = 0.5;  // of a round trip: round trips vary this much by themselves

}  // namespace

void BurstRate::add(std::size_t bytes, std::uint64_t ahead, Time now) noexcept {
  if (ack_requested_) return;
  if (left_ == 0 || now - last_ > kAtOnce) {
    first_ = now;
    bytes_ = 0;
    ahead_ = left_ = ahead;
  }
  last_ = now;
  bytes_ += bytes;
  left_ += bytes;
}

void BurstRate::request_ack(Time now) noexcept {
  ack_requested_ = true;
  (bytes_ >= kMinBytes ? requested_at_ : round_trip_at_) = now;
}

bool BurstRate::wants_ack_request(Time now) const noexcept {
  if (round_trip_ < 0 || ack_requested_ || bytes_ < kMinBytes) return false;
  return !has_reported_ || now - requested_at_ >= kAckRequestPause;
}

bool BurstRate::wants_round_trip(Time now) const noexcept {
  return round_trip_ < 0 || now - round_trip_at_ >= kRoundTripPause;
}

void BurstRate::note_round_trip(double seconds) noexcept {
  // A shorter one counts at once; a longer one may include a wait for a processor.
  const bool is_shorter = round_trip_ < 0 || seconds < round_trip_;
  round_trip_ = is_shorter ? seconds : round_trip_ + kRoundTripWeight * (seconds - round_trip_);
}

std::optional<BurstRate::Bounds> BurstRate::acknowledged(std::size_t bytes, Time now) noexcept {
  left_ -= std::min<std::uint64_t>(bytes, left_);
  return left_ == 0 && std::exchange(ack_requested_, false) ? end(now) : std::nullopt;
}

std::optional<BurstRate::Bounds> BurstRate::end(Time now) noexcept {
  const double took = Seconds(now - first_).count();
  if (ahead_ + bytes_ <= kNextToNothing) {
    note_round_trip(took);
    return std::nullopt;
  }
  // Bytes that were not sent at once may have waited for their sender.
  const bool is_at_once = Seconds(last_ - first_).count() <= took / 4;
  if (bytes_ < kMinBytes || round_trip_ < 0 || !is_at_once) return std::nullopt;
  const double carried = took - round_trip_;
  const bool is_hidden = carried <= std::max(kHidden * round_trip_, 1e-6);
  const auto rate_of = [&](std::uint64_t bytes) {
    return is_hidden ? std::numeric_limits<double>::infinity() : static_cast<double>(bytes) / carried;
  };
  bounds_ = {std::min(bounds_.least, rate_of(bytes_)), std::max(bounds_.most, rate_of(ahead_ + bytes_))};
  if (++count_ < kInARow) return std::nullopt;
  const Bounds found = bounds_;
  bounds_ = kNone;
  count_ = 0;
  has_reported_ = true;
  return found;
}

}  // namespace atl::transport::tcp
