// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>

#include "atoll/core/deadline.h"
#include "atoll/infer/wire/messages.h"

namespace atl::infer {

/// Tracks how much of a device's turns each model has used lately: means over the past, in which a contribution counts
/// for 1 / e after `memory`. One thread at a time; times must not go back.
class TurnLoad {
 public:
  /// Identifies a model by its address.
  using Key = const void*;

  explicit TurnLoad(std::chrono::duration<double> memory = std::chrono::seconds(2)) : memory_(memory) {}

  void waits(Key key, Clock::time_point now) { enter(key, State::kWaits, now); }
  void runs(Key key, Clock::time_point now) { enter(key, State::kRuns, now); }
  /// The model neither waits nor runs; ignored if it is not known.
  void rests(Key key, Clock::time_point now);
  /// Removes the model and what it has used.
  void forget(Key key) { uses_.erase(key); }
  std::size_t known() const noexcept { return uses_.size(); }

  /// The load by all models that are not `is_own`, on a device with `turns` turns at once. Before any turn has ended,
  /// running turns count with their time so far.
  wire::Load of_others(std::size_t turns, const std::function<bool(Key)>& is_own, Clock::time_point now) const;

 private:
  enum class State { kRests, kWaits, kRuns };
  struct Use {
    State state = State::kRests;
    Clock::time_point since{};    // when the means were computed
    Clock::time_point started{};  // when the turn was
    double running = 0;           // means
    double waiting = 0;
    double turn_seconds = 0;  // sums
    double turns = 0;
  };
  void enter(Key key, State state, Clock::time_point now);
  Use at(Use use, Clock::time_point now) const;

  const std::chrono::duration<double> memory_;
  std::map<Key, Use> uses_;
};

}  // namespace atl::infer
