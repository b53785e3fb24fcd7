// SPDX-License-Identifier: Apache-2.0
// TcpLink's rails: how they are chosen and watched, and what happens when one fails and when it returns.
#include <algorithm>
#include <tuple>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/rails/interfaces.h"
#include "atoll/transport/rails/rails.h"
#include "atoll/transport/tcp/link.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStallLimit{1000};  // longer than a peer takes to acknowledge a few bytes
constexpr milliseconds kFirstPause{100};
constexpr milliseconds kMaxRailPause{5000};
constexpr double kUsualRate = 125e6;    // bytes per second, of an interface that states none
constexpr double kStepSeconds = 20e-6;  // that a step away from the device counts as
constexpr double kOtherNodeShare = 0.8;

/// Estimates a rail between two ends.
tcp::RailScheduler::Expected expectation(const RailAddress& a, const RailAddress& b) {
  tcp::RailScheduler::Expected expected{.bytes_per_second = kUsualRate, .latency_seconds = 0};
  const std::uint32_t megabits =
      std::min(a.megabits == 0 ? b.megabits : a.megabits, b.megabits == 0 ? a.megabits : b.megabits);
  if (megabits != 0) expected.bytes_per_second = megabits * 1e6 / 8;
  constexpr auto kFar = static_cast<std::uint8_t>(Distance::kOtherNode);
  for (const std::uint8_t distance : {a.distance, b.distance}) {
    expected.latency_seconds += std::min(distance, kFar) * kStepSeconds;
    if (distance >= kFar) expected.bytes_per_second *= kOtherNodeShare;
  }
  return expected;
}

}  // namespace

std::unique_ptr<tcp::Rail> TcpLink::make_rail(std::size_t index, std::size_t max_message_bytes) {
  return std::make_unique<Rail>(
      static_cast<tcp::MessageSink&>(*this), [this](Rail& rail) { on_broken(rail); }, index, max_message_bytes);
}

void TcpLink::plan_rails_on_loop(const PeerAddress& authenticated) {
  const auto pairs = pair_rails(self_, authenticated);
  if (pairs.size() < 2) return;
  // Prefer the rails of the address for which the link was requested, if there are as many.
  const auto& known = peer_address().rails;
  const auto& theirs = known.size() == authenticated.rails.size() ? known : authenticated.rails;
  const std::lock_guard lock(mutex_);
  for (const auto& [here, there] : pairs) {
    const std::size_t index = ways_.size();
    Way way;
    way.wanted = {index, index == 0 ? "" : self_.rails[here].tcp, theirs[there].tcp};
    way.expected = expectation(self_.rails[here], authenticated.rails[there]);
    ways_.push_back(std::move(way));
    if (index != 0) rails_.push_back(make_rail(index, 0));
  }
  control_ = std::make_unique<tcp::ControlReader>(
      [this](const tcp::Prefix& prefix, std::span<const std::byte> body) { take_control_on_loop(prefix, body); });
  spread_ = std::make_unique<tcp::Spread>(rails_);
}

std::size_t TcpLink::open_rails_on_loop() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->is_open(); }));
}

std::optional<WantedRail> TcpLink::next_rail_on_loop(Clock::time_point now) {
  if (!spread_ || !is_initiator_ || state() != LinkState::kUp) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (said_bye_) return std::nullopt;
  for (Way& way : ways_) {
    if (rails_[way.wanted.rail]->is_open() || way.is_being_made || now < way.not_before) continue;
    way.is_being_made = true;
    return way.wanted;
  }
  return std::nullopt;
}

void TcpLink::rail_unreachable_on_loop(std::size_t rail, const Error& why) {
  if (rail >= ways_.size()) return;
  Way& way = ways_[rail];
  const bool is_first = way.pause < 2 * kFirstPause;
  way.is_being_made = false;
  way.pause = std::clamp(2 * way.pause, kFirstPause, kMaxRailPause);
  way.not_before = Clock::now() + way.pause;
  locked([&] { way.trouble = why.what(); });
  log(is_first ? LogLevel::kWarning : LogLevel::kDebug, peer_name() + ": cannot open the rail from " +
                                                            (way.wanted.from.empty() ? "here" : way.wanted.from) +
                                                            " to " + way.wanted.to + ", trying again: " + why.what());
}

bool TcpLink::takes_rail_on_loop(std::size_t rail) const {
  const std::lock_guard lock(mutex_);
  return spread_ && !is_initiator_ && state() == LinkState::kUp && rail < rails_.size() && !said_bye_;
}

void TcpLink::attach_rail_on_loop(std::size_t rail, ByteStream stream) {
  if (state() != LinkState::kUp || !spread_ || rail >= rails_.size()) return;
  ways_[rail].is_being_made = false;
  if (locked([this] { return said_bye_; })) return;
  Rail& opened = *rails_[rail];
  if (opened.is_open()) drop_rail_on_loop(opened, "the peer has opened it again");
  try {
    open_rail_on_loop(opened, std::move(stream));
  } catch (const Error& error) {
    drop_rail_on_loop(opened, error.what());
    if (open_rails_on_loop() == 0) fail_on_loop(error);  // no rail is left
    return;
  }
  repeat_credit_on_loop();
}

void TcpLink::drop_rail_on_loop(Rail& rail, const std::string& why) {
  loop().remove_fd_on_loop(rail.fd());
  std::uint64_t bytes = 0;
  bool is_leaving = false;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    is_leaving = said_bye_;
    bytes = spread_->close(rail, Clock::now());
    Way& way = ways_[rail.index()];
    way.trouble = why;
    way.pause = std::clamp(2 * way.pause, kFirstPause, kMaxRailPause);
    way.not_before = Clock::now() + (way.pause > kFirstPause ? way.pause : milliseconds(0));
    const std::lock_guard channels_lock(channels_mutex_);
    for (TcpChannel* const channel : outgoing_) channel->stream().announced &= ~(1U << rail.index());
    wake = after_sending();  // perhaps a probe was all that was on its way
  }
  if (wake) doorbell().ring_all();
  if (is_leaving) return;
  log(LogLevel::kWarning, peer_name() + ": the rail " + rail.path() + " is down (" + why + "); " +
                              std::to_string(bytes) + " bytes go over the others");
  repeat_credit_on_loop();
}

/// Sends all credit again, because credit on its way over a failed rail is lost; the receiver takes the highest.
void TcpLink::repeat_credit_on_loop() {
  for (const auto& [number, channel] : incoming_) {
    if (channel->wants_credit_on_loop()) send_credit(*channel, channel->popped());
  }
  const std::lock_guard lock(mutex_);
  if (control_->released() != 0) give_credit(0, control_->released());
}

/// A process that was stopped must not lose its rails: a rail is only in doubt if the peer was heard on another one.
bool TcpLink::is_another_rail_heard_on_loop(const Rail& rail, Clock::duration within) const {
  return std::any_of(rails_.begin(), rails_.end(), [&](const auto& other) {
    return other.get() != &rail && other->is_open() && other->watch.silence < within;
  });
}

/// Updates the rails' counters; the link ends when even the shortest silence of all rails is too long.
void TcpLink::watch_rails_on_loop(Clock::duration passed) {
  auto silence = Clock::duration::max();
  for (const auto& rail : rails_) {
    if (!rail->is_open()) continue;
    note_progress_on_loop(*rail, passed);
    silence = std::min(silence, rail->watch.silence);
    if (rail->watch.quiet >= options().heartbeat / 4) send_heartbeat_on_loop(*rail);
    acknowledge_on_loop(*rail, 1);
  }
  if (silence != Clock::duration::max() && silence >= patience_) {
    const std::string seconds = one_decimal(std::chrono::duration<double>(silence).count());
    return fail_on_loop(lost("has been silent for " + seconds + " s: stopped, or the network in between is cut"));
  }
  if (!spread_) return;
  const auto busy = busy_time();
  bool has_doubt = false;
  for (const auto& rail : rails_) {
    if (!rail->is_open()) continue;
    const auto& watch = rail->watch;
    const bool is_stuck =
        watch.stalled >= kStallLimit + busy && is_another_rail_heard_on_loop(*rail, watch.stalled / 2);
    const bool is_silent = watch.silence >= patience_ + busy && is_another_rail_heard_on_loop(*rail, patience_ / 2);
    has_doubt = has_doubt || watch.stalled >= kStallLimit / 2;
    if (!is_stuck && !is_silent) continue;
    const auto seconds = std::chrono::duration<double>(std::max(watch.stalled, watch.silence)).count();
    drop_rail_on_loop(*rail, "nothing has passed for " + one_decimal(seconds) + " s");
  }
  const std::lock_guard lock(mutex_);
  if (has_doubt) spread_->request_acks_on_idle_rails(Clock::now());
  spread_->probe(Clock::now());
  spread_->pump(Clock::now());
}

/// Returns how long a rail may wait before it is in doubt: the time for the bytes on their way, and for as many the
/// other way.
Clock::duration TcpLink::busy_time() const {
  const std::chrono::duration<double> both_ways(locked([this] { return 2 * spread_->scheduler().longest_seconds(); }));
  return std::chrono::duration_cast<Clock::duration>(both_ways);
}

void TcpLink::note_progress_on_loop(Rail& rail, Clock::duration passed) {
  Rail::Watch& watch = rail.watch;
  const auto [out, acknowledged, waits] =
      locked([&] { return std::tuple(rail.bytes_out(), rail.acknowledged(), !rail.on_their_way().empty()); });
  const auto since = [&](Clock::duration before, bool is_same) {
    return is_same ? before + passed : Clock::duration(0);
  };
  watch.quiet = since(watch.quiet, out == std::exchange(watch.seen_out, out));
  watch.silence = since(watch.silence, rail.bytes_in() == std::exchange(watch.seen_in, rail.bytes_in()));
  const bool is_stuck = acknowledged == std::exchange(watch.seen_acknowledged, acknowledged);
  // On a slow rail acknowledgements arrive after other bytes, which suffice as a sign of life. When this side's bytes
  // no longer pass, the peer's cease too, for lack of the kernel's acknowledgements.
  const bool is_heard = watch.silence == Clock::duration(0);
  watch.stalled = since(watch.stalled, waits && is_stuck && !is_heard);
  if (spread_ && !is_stuck) ways_[rail.index()].pause = milliseconds(0);  // it is of use
}

/// Returns "tcp over 1 of 2 rails: A -> B 118.1 MB/s, C down (connection reset)".
std::string TcpLink::describe_rails() const {
  std::string text;
  std::size_t open = 0;
  for (const Way& way : ways_) {
    const Rail& rail = *rails_[way.wanted.rail];
    text += text.empty() ? ": " : ", ";
    if (rail.is_open()) {
      ++open;
      text += rail.path() + " " + one_decimal(spread_->scheduler().rate(rail.index()) * 1e-6) + " MB/s";
    } else {
      text += (rail.path().empty() ? "to " + way.wanted.to : rail.path()) + " down" +
              (way.trouble.empty() ? "" : " (" + way.trouble + ")");
    }
  }
  return "tcp over " + std::to_string(open) + " of " + std::to_string(ways_.size()) + " rails" + text;
}

}  // namespace atl::transport
