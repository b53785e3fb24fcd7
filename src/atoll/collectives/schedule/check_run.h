// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "atoll/collectives/schedule/check_memory.h"

namespace atl::collectives::detail {

/// Checks one rank's schedule by itself: ranges within their segments, peers, frame sizes, the lane rules of
/// schedule.h, and that the summary (peers, bytes sent) is correct. Returns a description of the first fault, or an
/// empty string.
std::string check_rules(const Topology& topology, const Shape& shape, int rank, const Schedule& schedule,
                        const ScheduleLimits& limits);

/// Runs all ranks' schedules on symbolic values, out of place, in place, and in place with results that owners write
/// into what was lent for them, side by side, over channels of `limits.window` bytes. One order of execution is enough:
/// every channel has one sending and one receiving lane, and every wait is for a condition that stays true, so any
/// order reaches the same end or the same deadlock. The credit that a receiver returns does not count as an order
/// between steps. Frames that may be lent are: the step that takes one reads the sender's memory. Whether a result is
/// written in place or sent again may depend on that order; either way the receiver has it before the step that takes
/// its frame ends.
class CheckRun {
 public:
  CheckRun(const Topology& topology, const std::vector<Shape>& shapes, const std::vector<Schedule>& schedules,
           const ScheduleLimits& limits);

  /// Returns a description of the first fault, or an empty string. The schedules must have passed check_rules().
  std::string run();

 private:
  static constexpr std::size_t kOutOfPlace = 0, kInPlace = 1, kInPlaceForResults = 2;
  static constexpr std::size_t kWorlds = 3;
  struct Frame {
    std::uint64_t bytes = 0, count = 0, position = 0;
    std::uint64_t cost = 0;
    Runs runs[kWorlds];
    Range lent;               // the sender's memory; no bytes: the frame holds a copy
    bool for_result = false;  // and may be replaced by the result there
    bool is_there = false;    // a result that was written there
    Knowledge known;
  };
  struct Channel {
    std::deque<Frame> frames;
    std::uint64_t used = 0;
  };
  struct LaneState {
    std::uint32_t done = 0;
    Knowledge known;
    std::map<std::uint32_t, Knowledge> known_after;  // by number of steps done, where another lane waits for it
  };
  struct RankState {
    std::vector<LaneState> lanes;
    std::optional<Memory> worlds[kWorlds];
    std::uint32_t first_lane = 0;                   // in Knowledge
    std::map<int, std::uint64_t> written_position;  // by peer: of the last result that was written into its memory
  };
  // A step that a rank is carrying out.
  struct Doing {
    int rank;
    RankState& state;
    LaneState& lane;
    const Step& step;
    Moment now;
  };

  void wake(int rank);
  void advance(int rank);
  bool is_ready(int rank, const Step& step);
  void do_step(int rank, std::uint32_t lane, const Step& step);
  void learn(const Doing& doing);
  void move_values(const Doing& doing, std::size_t world, Frame* sent);
  Runs payload(int peer, const Doing& doing, std::size_t world);
  void write_results(const Doing& doing, const Runs& folded);
  Runs gather_and_fold(const Doing& doing, std::size_t world);
  void pop_frames(int rank, const Step& step);
  std::vector<int> senders(int rank, const Step& step) const;
  std::string describe_deadlock() const;

  std::string check_results();
  std::string check_segment(int rank, std::uint32_t segment, const Runs& runs);
  std::string check_run(int rank, std::uint32_t segment, std::uint64_t offset, const Value& value);
  std::string check_agreement(std::uint64_t offset, const Run& run);

  Channel& channel(int from, int to, Flow flow) {
    const auto size = static_cast<std::uint64_t>(schedules_.size());
    return channels_[(static_cast<std::uint64_t>(from) * size + static_cast<std::uint64_t>(to)) * 2 +
                     static_cast<std::uint64_t>(flow)];
  }
  const Frame& frame_from(int peer, const Doing& doing) {
    return channel(peer, doing.rank, doing.step.flow).frames.front();
  }

  const Topology& topology_;
  const std::vector<Shape>& shapes_;
  const std::vector<Schedule>& schedules_;
  const ScheduleLimits& limits_;
  Expressions expressions_;
  std::vector<RankState> ranks_;
  std::unordered_map<std::uint64_t, Channel> channels_;  // by sender, receiver and flow
  std::deque<int> awake_;                                // ranks that may be able to continue
  std::vector<bool> is_awake_;
  std::map<std::uint64_t, Run> agreed_;            // all_reduce: by offset, the values of the ranks checked so far
  std::map<Expressions::Id, std::string> judged_;  // results of Expressions::check_result
  std::string fault_;
};

}  // namespace atl::collectives::detail
