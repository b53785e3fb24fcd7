// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>

#include "atoll/core/deadline.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// How much of a device's turns each model has used lately: means over the past, in which what was counts for 1 / e after
/// `memory`. One thread at a time; times do not go back.
class TurnLoad {
 public:
  /// A model: anything that has an address.
  using Who = const void*;

  explicit TurnLoad(std::chrono::duration<double> memory = std::chrono::seconds(2)) : memory_(memory) {}

  void waits(Who who, Clock::time_point now) { enter(who, State::kWaits, now); }
  void runs(Who who, Clock::time_point now) { enter(who, State::kRuns, now); }
  /// Whoever neither waits nor runs; one that is not known is not from now on either.
  void rests(Who who, Clock::time_point now);
  /// It is gone, with what it has used.
  void forget(Who who) { uses_.erase(who); }
  std::size_t known() const noexcept { return uses_.size(); }

  /// Of all that are not `is_own`, on a device of so many turns at once. Without a turn that has ended, those that run are
  /// as long as they are so far.
  wire::Load of_others(std::size_t turns, const std::function<bool(Who)>& is_own, Clock::time_point now) const;

 private:
  enum class State { kRests, kWaits, kRuns };
  struct Use {
    State state = State::kRests;
    Clock::time_point since{};  // of the means
    Clock::time_point begun{};  // the turn
    double running = 0;         // means
    double waiting = 0;
    double turn_seconds = 0;  // sums
    double turns = 0;
  };
  void enter(Who who, State state, Clock::time_point now);
  Use at(Use use, Clock::time_point now) const;

  const std::chrono::duration<double> memory_;
  std::map<Who, Use> uses_;
};

}  // namespace atl::infer
