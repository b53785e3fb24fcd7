// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "atoll/collectives/schedule/check_run.h"

namespace atl::collectives::detail {
namespace {

class Rules {
 public:
  Rules(const Topology& topology, const Shape& shape, int rank, const Schedule& schedule, const ScheduleLimits& limits)
      : topology_(topology), rank_(rank), schedule_(schedule), limits_(limits), element_bytes_(size_of(shape.dtype)) {
    inputs_ = segment_bytes(topology, shape, rank, Space::kInput);
    outputs_ = segment_bytes(topology, shape, rank, Space::kOutput);
    for (auto& lanes : lane_of_) lanes.assign(static_cast<std::size_t>(topology.size) * 2, -1);
    met_.assign(static_cast<std::size_t>(topology.size), false);
  }

  std::string check() {
    std::size_t next = 0;
    for (std::size_t lane = 0; lane < schedule_.lanes.size(); ++lane) {
      if (schedule_.lanes[lane].first != next) return "lanes are not consecutive in the list of steps";
      next += schedule_.lanes[lane].count;
      if (next > schedule_.steps.size()) return "a lane has steps beyond the list";
      bridge_ = false;
      for (std::size_t i = schedule_.lanes[lane].first; i < next; ++i) {
        if (std::string fault = check_step(static_cast<int>(lane), schedule_.steps[i]); !fault.empty()) {
          return describe_step(schedule_, schedule_.steps[i]) + ": " + fault;
        }
      }
      if (bridge_ != schedule_.lanes[lane].bridge)
        return "lane " + std::to_string(lane) + " is wrongly marked as bridge or inside";
    }
    if (next != schedule_.steps.size()) return "there are steps outside the lanes";
    return check_summary();
  }

 private:
  std::string check_step(int lane, const Step& step) {
    if (step.after_lane >= static_cast<int>(schedule_.lanes.size())) return "waits for a lane that does not exist";
    if (step.after_lane >= 0 && step.after_steps > schedule_.lanes[static_cast<std::size_t>(step.after_lane)].count) {
      return "waits for more steps than the lane has";
    }
    if (!is_within(step.range)) return "lies outside its memory";
    if (step.kind == StepKind::kCopy)
      return is_within(step.from) && step.from.bytes == step.range.bytes ? "" : "copies from outside its memory";
    if (step.range.bytes > limits_.max_payload) return "is larger than a frame may be";
    if (step.kind != StepKind::kSend && step.range.space == Space::kInput) return "writes into the input";
    if (step.kind == StepKind::kReduce) return check_reduce(lane, step);
    if (step.kind == StepKind::kSend) {
      (is_bridge(step.peer) ? sent_bridge_ : sent_inside_) += step.range.bytes;
    }
    return use_channel(lane, step.kind == StepKind::kSend ? 0 : 1, step.peer, step.flow);
  }

  std::string check_reduce(int lane, const Step& step) {
    if (step.source_count == 0 || step.first_source + std::size_t{step.source_count} > schedule_.sources.size())
      return "has no sources";
    std::vector<bool> taken(met_.size(), false);
    for (const Source& source : schedule_.sources_of(step)) {
      if (source.peer < 0) {
        if (!is_within(source.local) || source.local.bytes != step.range.bytes)
          return "folds memory outside its segment or of another length";
        continue;
      }
      if (std::string fault = use_channel(lane, 1, source.peer, step.flow); !fault.empty()) return fault;
      if (taken[static_cast<std::size_t>(source.peer)]) return "takes two frames of one peer at once";
      taken[static_cast<std::size_t>(source.peer)] = true;
    }
    return "";
  }

  // All sends of a peer and flow are in one lane, and all its receives are in one lane.
  std::string use_channel(int lane, std::size_t direction, int peer, Flow flow) {
    if (peer < 0 || peer >= topology_.size || peer == rank_) return "names an invalid peer";
    met_[static_cast<std::size_t>(peer)] = true;
    bridge_ = bridge_ || is_bridge(peer);
    int& known = lane_of_[direction][static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(flow)];
    if (known < 0) known = lane;
    return known == lane ? "" : "shares its peer and flow with lane " + std::to_string(known);
  }

  std::string check_summary() const {
    std::vector<int> peers;
    for (int peer = 0; peer < topology_.size; ++peer) {
      if (met_[static_cast<std::size_t>(peer)]) peers.push_back(peer);
    }
    if (peers != schedule_.peers) return "the list of peers differs from those in the steps";
    if (sent_inside_ != schedule_.sent_bytes_inside || sent_bridge_ != schedule_.sent_bytes_bridge)
      return "the sums of sent bytes are wrong";
    return "";
  }

  bool is_bridge(int peer) const { return peer >= 0 && peer < topology_.size && !topology_.same_island(rank_, peer); }

  bool is_within(const Range& range) const {
    std::uint64_t size = schedule_.scratch_bytes;
    if (range.space == Space::kScratch && range.segment != 0) return false;
    if (range.space != Space::kScratch) {
      const auto& segments = range.space == Space::kInput ? inputs_ : outputs_;
      if (range.segment >= segments.size()) return false;
      size = segments[range.segment];
    }
    return range.offset <= size && range.bytes <= size - range.offset && range.bytes % element_bytes_ == 0;
  }

  const Topology& topology_;
  const int rank_;
  const Schedule& schedule_;
  const ScheduleLimits& limits_;
  const std::uint64_t element_bytes_;
  std::vector<std::uint64_t> inputs_, outputs_;
  std::array<std::vector<int>, 2> lane_of_;  // by direction (send, receive), peer and flow
  std::vector<bool> met_;
  bool bridge_ = false;  // the current lane has a peer in another island
  std::uint64_t sent_inside_ = 0, sent_bridge_ = 0;
};

}  // namespace

std::string check_rules(const Topology& topology, const Shape& shape, int rank, const Schedule& schedule,
                        const ScheduleLimits& limits) {
  return Rules(topology, shape, rank, schedule, limits).check();
}

}  // namespace atl::collectives::detail
