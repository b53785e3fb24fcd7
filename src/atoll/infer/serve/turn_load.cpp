// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/turn_load.h"

#include <algorithm>
#include <cmath>

namespace atl::infer {
namespace {

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// The use, aged to `now`.
TurnLoad::Use TurnLoad::at(Use use, Clock::time_point now) const {
  const double kept = std::exp(-std::max(0.0, seconds(now - use.since)) / memory_.count());
  use.running = use.running * kept + (use.state == State::kRuns ? 1 - kept : 0);
  use.waiting = use.waiting * kept + (use.state == State::kWaits ? 1 - kept : 0);
  use.turn_seconds *= kept;
  use.turns *= kept;
  use.since = now;
  return use;
}

void TurnLoad::enter(Key key, State state, Clock::time_point now) {
  const auto [found, is_new] = uses_.try_emplace(key);
  Use& use = found->second;
  if (is_new) use.since = now;
  use = at(use, now);
  if (use.state == state) return;
  if (use.state == State::kRuns) {
    use.turn_seconds += seconds(now - use.started);
    use.turns += 1;
  }
  if (state == State::kRuns) use.started = now;
  use.state = state;
}

void TurnLoad::rests(Key key, Clock::time_point now) {
  if (uses_.contains(key)) enter(key, State::kRests, now);
}

wire::Load TurnLoad::of_others(std::size_t turns, const std::function<bool(Key)>& is_own, Clock::time_point now) const {
  constexpr double kMaxWaitingToTell = wire::kMaxWaiting;
  wire::Load load;
  load.turns = static_cast<std::uint32_t>(std::min<std::size_t>(turns, wire::kMaxTurns));
  double ended = 0;
  double ended_seconds = 0;
  double running_seconds = 0;
  int running = 0;
  for (const auto& [key, stored] : uses_) {
    if (is_own(key)) continue;
    const Use use = at(stored, now);
    load.computing += use.running;
    load.waiting += use.waiting;
    ended += use.turns;
    ended_seconds += use.turn_seconds;
    if (use.state != State::kRuns) continue;
    running_seconds += std::max(0.0, seconds(now - use.started));
    ++running;
  }
  load.computing = std::min(load.computing, static_cast<double>(load.turns));
  load.waiting = std::min(load.waiting, kMaxWaitingToTell);
  const double mean = ended > 0 ? ended_seconds / ended : running > 0 ? running_seconds / running : 0;
  load.turn_us = static_cast<std::uint64_t>(std::min(mean * 1e6, static_cast<double>(wire::kMaxMicroseconds)));
  return load;
}

}  // namespace atl::infer
