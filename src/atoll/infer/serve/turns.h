// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/serve/turn_load.h"

namespace atl::infer {

/// Whose turn it is to compute: so many at once, the others in the order in which they asked. On the server's loop.
class Turns {
 public:
  /// Who asks: anything that has an address.
  using Who = const void*;
  using Give = std::function<void(Who)>;

  /// `give` is called when a turn begins, perhaps inside want().
  Turns(std::size_t at_once, Give give) : at_once_(at_once), give_(std::move(give)) {}

  /// Asks once; a second time before the turn is over changes nothing.
  void want(Who who, Clock::time_point now);
  /// Gives up a turn or a place in the queue.
  void over(Who who, Clock::time_point now);

  /// The same for one that is gone: its past counts no more either.
  void forget(Who who, Clock::time_point now);

  /// How many come before `who`; 0 when it has its turn or does not wait.
  std::size_t before(Who who) const noexcept;
  /// Who has computed for longer than `limit` without a pause.
  std::vector<Who> longer_than(Clock::duration limit, Clock::time_point now) const;
  /// How much others than those that are `is_own` have used lately.
  wire::Load load_of_others(const std::function<bool(Who)>& is_own, Clock::time_point now) const {
    return load_.of_others(at_once_, is_own, now);
  }
  std::size_t waiting() const noexcept { return waiting_.size(); }
  std::size_t running() const noexcept { return running_.size(); }

 private:
  struct Turn {
    Who who = nullptr;
    Clock::time_point begun;
  };
  std::size_t at_once_;
  Give give_;
  std::vector<Turn> running_;
  std::deque<Who> waiting_;
  TurnLoad load_;
};

}  // namespace atl::infer
