// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/schedule/writer.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace atl::collectives {

ScheduleWriter::ScheduleWriter(const Topology& topology, int rank, std::size_t keys, bool one_lane,
                               std::uint64_t min_lent)
    : topology_(topology), rank_(rank), one_lane_(one_lane), min_lent_(min_lent) {
  for (auto& lanes : lane_of_) lanes.assign(one_lane ? 1 : keys, -1);
}

int ScheduleWriter::lane(LaneRole role, int key) {
  int& known = one_lane_ ? lane_of_[0][0] : lane_of_[static_cast<std::size_t>(role)][static_cast<std::size_t>(key)];
  if (known < 0) {
    known = static_cast<int>(drafts_.size());
    drafts_.push_back({role, key, {}, {}});
  }
  return known;
}

Step& ScheduleWriter::add(int lane, StepKind kind, const Range& range, Mark after) {
  Draft& draft = drafts_[static_cast<std::size_t>(lane)];
  Step& step = draft.steps.emplace_back();
  step.kind = kind;
  step.range = range;
  if (after.lane < 0 || after.lane == lane) return step;
  if (draft.waited.size() < drafts_.size()) draft.waited.resize(drafts_.size(), 0);
  std::uint32_t& waited = draft.waited[static_cast<std::size_t>(after.lane)];
  if (waited >= after.steps) return step;
  waited = after.steps;
  step.after_lane = after.lane;
  step.after_steps = after.steps;
  return step;
}

Mark ScheduleWriter::end_of(int lane) const {
  return {lane, static_cast<std::uint32_t>(drafts_[static_cast<std::size_t>(lane)].steps.size())};
}

Step& ScheduleWriter::add_frame(StepKind kind, int lane, Flow flow, int peer, const Range& range, MessagePart message,
                                Mark after) {
  Step& step = add(lane, kind, range, after);
  step.flow = flow;
  step.peer = peer;
  step.count = message.count;
  step.position = message.position;
  return step;
}

Mark ScheduleWriter::send(int lane, Flow flow, int peer, const Range& range, MessagePart message, Mark after) {
  Step& step = add_frame(StepKind::kSend, lane, flow, peer, range, message, after);
  step.lends = range.space != Space::kScratch && range.bytes >= min_lent_;
  lends_ = lends_ || step.lends;
  return end_of(lane);
}

Mark ScheduleWriter::receive(int lane, Flow flow, int peer, const Range& range, MessagePart message, Mark after) {
  add_frame(StepKind::kReceive, lane, flow, peer, range, message, after);
  return end_of(lane);
}

Mark ScheduleWriter::copy(int lane, const Range& from, const Range& to, Mark after) {
  add(lane, StepKind::kCopy, to, after).from = from;
  return end_of(lane);
}

Mark ScheduleWriter::reduce(int lane, const std::vector<Source>& sources, const Range& result, bool raw, bool final,
                            MessagePart message, Mark after) {
  Step& step = add(lane, StepKind::kReduce, result, after);
  step.raw = raw;
  step.final = final;
  step.first_source = static_cast<std::uint32_t>(sources_.size());
  step.source_count = static_cast<std::uint32_t>(sources.size());
  step.count = message.count;
  step.position = message.position;
  sources_.insert(sources_.end(), sources.begin(), sources.end());
  return end_of(lane);
}

void ScheduleWriter::for_result(Mark mark) {
  Step& step = drafts_[static_cast<std::size_t>(mark.lane)].steps[mark.steps - 1];
  step.for_result = step.lends;
}

void ScheduleWriter::past_caches(Mark mark) {
  drafts_[static_cast<std::size_t>(mark.lane)].steps[mark.steps - 1].past_caches = true;
}

void ScheduleWriter::wait(int lane, Mark after) {
  if (after.lane < 0 || after.lane == lane) return;
  const auto& waited = drafts_[static_cast<std::size_t>(lane)].waited;
  if (static_cast<std::size_t>(after.lane) < waited.size() &&
      waited[static_cast<std::size_t>(after.lane)] >= after.steps)
    return;
  const Range nothing{Space::kScratch, 0, 0, 0};
  copy(lane, nothing, nothing, after);
}

Range ScheduleWriter::scratch(std::uint64_t bytes) {
  const Range range{Space::kScratch, 0, scratch_bytes_, bytes};
  scratch_bytes_ += (bytes + 63) / 64 * 64;
  return range;
}

// Lanes of one role start with the next higher peer, so that ranks do not all turn to the same peer first.
std::vector<std::size_t> ScheduleWriter::lane_order() const {
  const auto place = [&](std::size_t draft) {
    const Draft& lane = drafts_[draft];
    const bool by_peer = lane.role == LaneRole::kContribute || lane.role == LaneRole::kCollect;
    const int key = by_peer ? (lane.key - rank_ + topology_.size) % topology_.size : lane.key;
    return std::tuple(static_cast<int>(lane.role), key);
  };
  std::vector<std::size_t> order(drafts_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return order;
}

Schedule ScheduleWriter::finish(const char* algorithm) {
  const auto order = lane_order();
  std::vector<int> lane_number(drafts_.size());
  std::size_t total = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    lane_number[order[i]] = static_cast<int>(i);
    total += drafts_[i].steps.size();
  }
  Schedule schedule;
  schedule.algorithm = algorithm;
  schedule.sources = std::move(sources_);
  schedule.scratch_bytes = scratch_bytes_;
  schedule.lends = lends_;
  schedule.steps.reserve(total);
  for (const std::size_t draft : order) {
    auto& steps = drafts_[draft].steps;
    schedule.lanes.push_back(
        {static_cast<std::uint32_t>(schedule.steps.size()), static_cast<std::uint32_t>(steps.size()), false});
    for (Step& step : steps) {
      if (step.after_lane >= 0) step.after_lane = lane_number[static_cast<std::size_t>(step.after_lane)];
    }
    schedule.steps.insert(schedule.steps.end(), steps.begin(), steps.end());
  }
  count_traffic(schedule);
  return schedule;
}

void ScheduleWriter::count_traffic(Schedule& schedule) const {
  std::vector<bool> seen(static_cast<std::size_t>(topology_.size), false);
  for (Lane& lane : schedule.lanes) {
    const auto note_peer = [&](int peer) {
      seen[static_cast<std::size_t>(peer)] = true;
      const bool bridge = !topology_.same_island(rank_, peer);
      lane.bridge = lane.bridge || bridge;
      return bridge;
    };
    for (std::uint32_t i = lane.first; i < lane.first + lane.count; ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind == StepKind::kSend)
        (note_peer(step.peer) ? schedule.sent_bytes_bridge : schedule.sent_bytes_inside) += step.range.bytes;
      if (step.kind == StepKind::kReceive) note_peer(step.peer);
      for (const Source& source : schedule.sources_of(step)) {
        if (source.peer >= 0) note_peer(source.peer);
      }
    }
  }
  for (int peer = 0; peer < topology_.size; ++peer) {
    if (seen[static_cast<std::size_t>(peer)]) schedule.peers.push_back(peer);
  }
}

}  // namespace atl::collectives
