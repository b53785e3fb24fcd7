// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/burst_rate.h"

#include <algorithm>

namespace atl::transport::tcp {

namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr int kInARow = 8;
constexpr std::size_t kNextToNothing = 256;  // bytes
constexpr auto kRoundTripPause = milliseconds(2000);
constexpr auto kQuestionPause = milliseconds(100);  // when bursts have told something
constexpr double kRoundTripWeight = 0.25;
constexpr double kHidden = 0.5;  // of a round trip: round trips vary so much by themselves

}  // namespace

void BurstRate::begin(Time now) noexcept {
  first_ = now;
  last_ = now;
  bytes_ = 0;
  is_asked_ = false;
}

void BurstRate::add(std::size_t bytes, Time now) noexcept {
  last_ = now;
  bytes_ += bytes;
  is_asked_ = false;
}

void BurstRate::ask(Time now) noexcept {
  is_asked_ = true;
  (bytes_ >= kLeastBytes ? asked_at_ : round_trip_at_) = now;
}

bool BurstRate::wants_question(Time now) const noexcept {
  if (round_trip_ < 0 || is_asked_ || bytes_ < kLeastBytes) return false;
  return !has_told_ || now - asked_at_ >= kQuestionPause;
}

bool BurstRate::wants_round_trip(Time now) const noexcept {
  return round_trip_ < 0 || now - round_trip_at_ >= kRoundTripPause;
}

void BurstRate::note_round_trip(double seconds) noexcept {
  // A shorter one counts at once: a longer one may have waited for a processor.
  const bool is_shorter = round_trip_ < 0 || seconds < round_trip_;
  round_trip_ = is_shorter ? seconds : round_trip_ + kRoundTripWeight * (seconds - round_trip_);
}

std::optional<BurstRate::Bounds> BurstRate::end(Time now) noexcept {
  if (!is_asked_) return std::nullopt;
  is_asked_ = false;
  const double took = Seconds(now - first_).count();
  if (bytes_ <= kNextToNothing) {
    note_round_trip(took);
    return std::nullopt;
  }
  // What did not leave at once may have waited for its user.
  const bool is_at_once = Seconds(last_ - first_).count() <= took / 4;
  if (bytes_ < kLeastBytes || round_trip_ < 0 || !is_at_once) return std::nullopt;
  const double carried = took - round_trip_;
  const bool is_hidden = carried <= std::max(kHidden * round_trip_, 1e-6);
  const double rate = is_hidden ? std::numeric_limits<double>::infinity() : static_cast<double>(bytes_) / carried;
  bounds_ = {std::min(bounds_.least, rate), std::max(bounds_.most, rate)};
  if (++count_ < kInARow) return std::nullopt;
  const Bounds told = bounds_;
  bounds_ = kNone;
  count_ = 0;
  has_told_ = true;
  return told;
}

}  // namespace atl::transport::tcp
