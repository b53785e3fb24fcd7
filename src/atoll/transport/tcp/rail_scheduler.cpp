// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/rail_scheduler.h"

#include <algorithm>
#include <utility>

#include "atoll/transport/tcp/wire.h"

namespace atl::transport::tcp {

namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr double kTurnSeconds = 0.001;      // of a rail's time, given to it at once
constexpr double kOnItsWaySeconds = 0.010;  // beyond the round trip
constexpr std::size_t kMinTurn = std::size_t{16} << 10;
constexpr double kMinOnItsWay = 512 << 10;
constexpr double kFirstOnItsWay = 256 << 10;
constexpr double kShareOfAllSeconds = 0.75;  // of the time that all rails take together: rates are never exact
constexpr double kBusySeconds = 0.001;       // beyond the round trip: a rail with this much on its way is never idle
constexpr double kMinBusy = 64 << 10;
constexpr double kMaxBusy = 512 << 10;
constexpr double kMinRate = 10e3;
constexpr auto kMeasureFor = milliseconds(4);
constexpr auto kMeasureAtMost = milliseconds(200);
constexpr std::uint64_t kMeasureBytes = std::uint64_t{64} << 10;
constexpr double kMemorySeconds = 0.05;
constexpr auto kProbePause = milliseconds(500);
constexpr double kProbeShare = 1.0 / 16;  // of a rail's time, at most
constexpr auto kSureFor = std::chrono::seconds(10);
constexpr double kWorthSharing = 200e-6;  // seconds: one more message costs a tenth of this on each side

// Of bursts.
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

std::size_t RailScheduler::turn_bytes(const Rail& rail) noexcept {
  const double bytes = std::min(rail.rate * kTurnSeconds, static_cast<double>(kMaxSegment));
  return std::max(static_cast<std::size_t>(bytes) / kUnit * kUnit, kMinTurn);
}

/// Returns the share of a rest of at most a turn: what lets all rails end at once, if the rail's rate is known and it
/// would take long for the whole rest.
std::size_t RailScheduler::share_of_rest(const Rail& rail, double rest, double all_seconds) noexcept {
  const auto whole = static_cast<std::size_t>(rest);
  if ((!rail.is_measured && !rail.is_guessed) || rest / rail.rate < kWorthSharing) return whole;
  const double share = std::max(rail.rate * all_seconds - static_cast<double>(rail.on_its_way), 0.0);
  const std::size_t bytes = std::max(static_cast<std::size_t>(share) / kUnit * kUnit, kMinTurn);
  return bytes + kMinTurn > whole ? whole : bytes;  // a small rest is not worth a message of its own
}

double RailScheduler::limit_bytes(const Rail& rail) noexcept {
  // A rail that was never measured gets only what the measurement takes: it may be far slower than its interface.
  if (!rail.is_measured) return std::max(kFirstOnItsWay, 1.25 * busy_bytes(rail));
  return std::max(rail.rate * (2 * rail.latency + kOnItsWaySeconds), kMinOnItsWay);
}

double RailScheduler::busy_bytes(const Rail& rail) noexcept {
  return std::clamp(rail.rate * (2 * rail.latency + kBusySeconds), kMinBusy, kMaxBusy);
}

double RailScheduler::arrival_seconds(const Rail& rail, double bytes) noexcept {
  return (static_cast<double>(rail.on_its_way) + bytes) / rail.rate + rail.latency;
}

void RailScheduler::open(std::size_t rail, const Expected& expected, Time now) noexcept {
  Rail& opened = rails_[rail];
  if (!opened.is_measured && !opened.is_guessed) {
    opened.rate = std::max(expected.bytes_per_second, kMinRate);
    opened.most = opened.rate;
  }
  opened.burst.forget();
  opened.is_open = true;
  opened.latency = expected.latency_seconds;
  opened.on_its_way = 0;
  opened.last_measured = now;
}

void RailScheduler::close(std::size_t rail) noexcept {
  rails_[rail].is_open = false;
  rails_[rail].on_its_way = 0;
}

std::optional<RailScheduler::Turn> RailScheduler::next(std::uint64_t waiting, unsigned ready) const noexcept {
  double rates = 0;
  double all = static_cast<double>(waiting);
  for (const Rail& rail : rails_) {
    if (!rail.is_open) continue;
    rates += rail.rate;
    all += static_cast<double>(rail.on_its_way);
  }
  if (rates == 0) return std::nullopt;
  const double all_seconds = all / rates;
  double best = std::numeric_limits<double>::infinity();
  double chosen_arrival = best;
  std::optional<Turn> chosen;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Rail& rail = rails_[i];
    if (!rail.is_open) continue;
    const std::size_t turn = turn_bytes(rail);
    const std::size_t bytes = waiting > turn ? turn : share_of_rest(rail, static_cast<double>(waiting), all_seconds);
    const double arrival = arrival_seconds(rail, static_cast<double>(bytes));
    best = std::min(best, arrival);
    const bool takes = (ready >> i & 1U) != 0 && static_cast<double>(rail.on_its_way) < limit_bytes(rail);
    if (!takes || arrival >= chosen_arrival) continue;
    chosen_arrival = arrival;
    chosen = Turn{i, bytes};
  }
  if (chosen && chosen_arrival > best && chosen_arrival > kShareOfAllSeconds * all_seconds) return std::nullopt;
  return chosen;
}

std::optional<std::size_t> RailScheduler::nearest(unsigned ready) const noexcept {
  std::optional<std::size_t> found;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const bool is_ready = rails_[i].is_open && (ready >> i & 1U) != 0;
    const double arrival = is_ready ? arrival_seconds(rails_[i], 0) : best;
    if (arrival >= best) continue;
    best = arrival;
    found = i;
  }
  return found;
}

double RailScheduler::longest_seconds() const noexcept {
  double longest = 0;
  for (const Rail& rail : rails_) {
    if (rail.is_open) longest = std::max(longest, static_cast<double>(rail.on_its_way) / rail.rate);
  }
  return longest;
}

void RailScheduler::sent(std::size_t rail, std::size_t bytes, Time now) noexcept {
  depart(rails_[rail], bytes, now);
  last_sent_ = now;
}

bool RailScheduler::is_sure(const Rail& rail, Time now) noexcept {
  return rail.is_measured && now - rail.last_busy < kSureFor;
}

bool RailScheduler::wants_round_trip(std::size_t rail, Time now) const noexcept {
  const Rail& carrier = rails_[rail];
  return carrier.is_open && carrier.on_its_way == 0 && !is_sure(carrier, now) && carrier.burst.wants_round_trip(now);
}

bool RailScheduler::wants_ack_request(std::size_t rail, Time now) const noexcept {
  const Rail& carrier = rails_[rail];
  const bool is_busy = static_cast<double>(carrier.on_its_way) >= busy_bytes(carrier);
  return carrier.is_open && !is_busy && carrier.on_its_way != 0 && !is_sure(carrier, now) &&
         carrier.burst.wants_ack_request(now);
}

void RailScheduler::ack_requested(std::size_t rail, std::size_t bytes, Time now) noexcept {
  depart(rails_[rail], bytes, now);
  rails_[rail].burst.request_ack(now);
}

void RailScheduler::depart(Rail& rail, std::size_t bytes, Time now) noexcept {
  if (rail.on_its_way == 0) {
    rail.since = now;
    rail.bytes = 0;
    rail.is_busy = false;  // the first acknowledgement takes a round trip
  }
  rail.burst.add(bytes, rail.on_its_way, now);
  rail.on_its_way += bytes;
}

void RailScheduler::acknowledged(std::size_t rail, std::size_t bytes, Time now) noexcept {
  Rail& carrier = rails_[rail];
  const bool was_busy = static_cast<double>(carrier.on_its_way) >= busy_bytes(carrier);
  carrier.on_its_way -= std::min<std::uint64_t>(bytes, carrier.on_its_way);
  carrier.bytes += bytes;
  carrier.is_busy = carrier.is_busy && was_busy;
  const auto took = now - carrier.since;
  const bool is_enough = took >= kMeasureFor && carrier.bytes >= kMeasureBytes;
  // A probe is alone on its rail, so the rail can be measured at the probe's end.
  const bool is_probed = carrier.on_its_way == 0 && now - carrier.last_measured >= kProbePause;
  if (is_enough || is_probed || took >= kMeasureAtMost) measure(carrier, now);
  const auto bounds = carrier.burst.acknowledged(bytes, now);
  if (bounds && !is_sure(carrier, now)) guess(carrier, *bounds);
}

/// Lowers the rate to that of the fastest burst, so that one late burst has no effect; raises it to that of the
/// slowest.
void RailScheduler::guess(Rail& rail, const BurstRate::Bounds& bounds) noexcept {
  if (bounds.most < rail.rate) rail.rate = std::max(bounds.most, kMinRate);
  if (bounds.least > rail.rate) rail.rate = std::min(bounds.least, std::max(rail.most, rail.rate));
  rail.is_guessed = true;
}

void RailScheduler::measure(Rail& rail, Time now) noexcept {
  const double took = Seconds(now - rail.since).count();
  // If less was on its way than the rail could carry, this is a lower bound.
  const double seconds = rail.is_busy ? took : std::max(took - 2 * rail.latency, took / 8);
  const double rate = static_cast<double>(rail.bytes) / std::max(seconds, 1e-6);
  const bool is_enough = rail.bytes >= kMinTurn;  // less is not representative
  if (rail.is_busy || (is_enough && rate > rail.rate)) {
    const bool is_better = rail.is_busy && rail.is_guessed;
    const double weight =
        rail.is_measured && !is_better ? std::max(took / (took + kMemorySeconds), rail.is_busy ? 0.0 : 0.25) : 1;
    rail.rate = std::max(rail.rate + weight * (rate - rail.rate), kMinRate);
    rail.is_measured = rail.is_measured || rail.is_busy;
    rail.is_guessed = rail.is_guessed && !rail.is_busy;
    rail.most = rail.is_busy ? rail.rate : std::max(rail.most, rail.rate);
    if (rail.is_busy) rail.last_busy = now;
  }
  if (is_enough) rail.last_measured = now;
  rail.since = now;
  rail.bytes = 0;
  rail.is_busy = rail.on_its_way != 0;
}

std::optional<RailScheduler::Turn> RailScheduler::probe(Time now, unsigned ready) noexcept {
  const bool is_idle = now - last_sent_ >= kProbePause;  // then nothing is sent, once the round trip is known
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (!rail.is_open || (ready >> i & 1U) == 0 || rail.on_its_way != 0) continue;
    if (is_idle && rail.burst.knows_round_trip()) continue;
    if (wants_round_trip(i, now)) {
      ack_requested(i, sizeof(Prefix), now);
      return Turn{i, 0};
    }
    if (is_idle) continue;
    const std::size_t bytes = std::min(turn_bytes(rail), kMaxProbe);
    const Seconds pause(static_cast<double>(bytes) / rail.rate / kProbeShare);
    if (now - rail.last_measured < std::max<Seconds>(kProbePause, pause)) continue;
    ack_requested(i, bytes, now);
    return Turn{i, bytes};
  }
  return std::nullopt;
}

}  // namespace atl::transport::tcp
