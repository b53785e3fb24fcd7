// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// The purpose of a lane. Together with its key (a peer, or a node of the tree) it identifies one lane. The order here
/// is the order in the schedule.
enum class LaneRole : std::uint8_t {
  kContribute,  ///< sends of this rank's own contributions to one peer
  kFold,        ///< folds at one node of the tree, each with the sends of its result
  kOwn,         ///< sends and copies of what this rank owns without a fold
  kCollect,     ///< receives from one peer
  kSpread,      ///< sends of results below one node of the tree
};

/// A point in a lane, after `steps` of its steps; lane -1: nothing to wait for.
struct Mark {
  int lane = -1;
  std::uint32_t steps = 0;
};

/// The facts about a frame's message that both ends know.
struct MessagePart {
  std::uint64_t count = 0;     ///< elements of the message
  std::uint64_t position = 0;  ///< bytes from its start
};

/// Collects one rank's steps lane by lane. If a builder adds the steps of all lanes in one order that all ranks share
/// (by chunk, then by stage), the schedules cannot block each other: the first unfinished step in that order can always
/// continue.
class ScheduleWriter {
 public:
  /// `keys` must exceed every key. `one_lane`: every step goes into a single lane, for schedules of a few steps. Sends
  /// of input and output lend from `min_lent` bytes on.
  ScheduleWriter(const Topology& topology, int rank, std::size_t keys, bool one_lane, std::uint64_t min_lent);

  int lane(LaneRole role, int key = 0);

  // Each adds a step to `lane` that waits for `after` (unless an earlier step of the lane does), and returns the mark
  // after that step.
  Mark send(int lane, Flow flow, int peer, const Range& range, MessagePart message, Mark after = {});
  Mark receive(int lane, Flow flow, int peer, const Range& range, MessagePart message, Mark after = {});
  Mark copy(int lane, const Range& from, const Range& to, Mark after = {});
  Mark reduce(int lane, const std::vector<Source>& sources, const Range& result, bool raw, bool final,
              MessagePart message, Mark after = {});

  /// Lets the step before `mark`, a send that lends, take the result in place.
  void for_result(Mark mark);

  /// Lets the step before `mark`, a receive or copy whose result no other step reads, write past the caches.
  void past_caches(Mark mark);

  /// Makes the next steps of `lane` wait for `after` as well: a copy of nothing carries the condition.
  void wait(int lane, Mark after);

  /// Reserves scratch memory, 64-byte aligned.
  Range scratch(std::uint64_t bytes);

  Schedule finish(const char* algorithm);

 private:
  struct Draft {
    LaneRole role;
    int key;
    std::vector<Step> steps;
    std::vector<std::uint32_t> waited;  // by other lane: how many of its steps this lane waits for so far
  };
  Step& add(int lane, StepKind kind, const Range& range, Mark after);
  Step& add_frame(StepKind kind, int lane, Flow flow, int peer, const Range& range, MessagePart message, Mark after);
  Mark end_of(int lane) const;
  std::vector<std::size_t> lane_order() const;
  void count_traffic(Schedule& schedule) const;

  const Topology& topology_;
  const int rank_;
  const bool one_lane_;
  const std::uint64_t min_lent_;
  std::vector<Draft> drafts_;
  std::array<std::vector<int>, 5> lane_of_;  // by role and key
  std::vector<Source> sources_;
  std::uint64_t scratch_bytes_ = 0;
  bool lends_ = false;
};

/// Builds all_reduce, barrier, reduce, reduce_scatter, broadcast and all_gather: contributions go up a tree to a
/// chunk's owner, and results come down.
Schedule build_tree_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits);

}  // namespace atl::collectives
