// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/serve/turn_load.h"

namespace atl::infer {

/// Gives turns to compute: `at_once` at the same time, the others in the order of their requests. On the server's loop.
class Turns {
 public:
  /// Identifies a requester by its address.
  using Key = const void*;
  using Give = std::function<void(Key)>;

  /// `give` is called when a turn begins, possibly inside want().
  Turns(std::size_t at_once, Give give) : at_once_(at_once), give_(std::move(give)) {}

  /// Requests a turn; does nothing if one is already requested or running.
  void want(Key key, Clock::time_point now);
  /// Gives up a turn or a place in the queue.
  void over(Key key, Clock::time_point now);

  /// The same, and forgets the requester's load.
  void forget(Key key, Clock::time_point now);

  /// The number of requesters before `key`; 0 when it has its turn or does not wait.
  std::size_t before(Key key) const noexcept;
  /// The requesters that have computed for longer than `limit` without a pause.
  std::vector<Key> longer_than(Clock::duration limit, Clock::time_point now) const;
  /// The recent load by all requesters that are not `is_own`.
  wire::Load load_of_others(const std::function<bool(Key)>& is_own, Clock::time_point now) const {
    return load_.of_others(at_once_, is_own, now);
  }
  std::size_t waiting() const noexcept { return waiting_.size(); }
  std::size_t running() const noexcept { return running_.size(); }

 private:
  struct Turn {
    Key key = nullptr;
    Clock::time_point started;
  };
  std::size_t at_once_;
  Give give_;
  std::vector<Turn> running_;
  std::deque<Key> waiting_;
  TurnLoad load_;
};

}  // namespace atl::infer
