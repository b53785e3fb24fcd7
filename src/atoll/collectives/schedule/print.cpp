// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {
namespace {

const char* flow_name(Flow flow) { return flow == Flow::kUp ? "up" : "down"; }

std::string describe_range(const Range& range) {
  const std::string offset = std::to_string(range.offset);
  if (range.space == Space::kScratch) return "scratch + " + offset;
  return (range.space == Space::kInput ? "input " : "output ") + std::to_string(range.segment) + " + " + offset;
}

std::string describe_sources(const Schedule& schedule, const Step& step) {
  std::string text;
  for (const auto& [peer, local] : schedule.sources_of(step))
    text += (text.empty() ? "" : ", ") + (peer >= 0 ? "rank " + std::to_string(peer) : describe_range(local));
  return text;
}

}  // namespace

std::string describe_step(const Schedule& schedule, const Step& step) {
  const std::string bytes = std::to_string(step.range.bytes) + " bytes at " + std::to_string(step.position);
  std::string text;
  switch (step.kind) {
    case StepKind::kSend:
      text = "send " + bytes + " to rank " + std::to_string(step.peer) + " " + flow_name(step.flow) + " from " +
             describe_range(step.range);
      break;
    case StepKind::kReceive:
      text = "receive " + bytes + " from rank " + std::to_string(step.peer) + " " + flow_name(step.flow) + " into " +
             describe_range(step.range);
      break;
    case StepKind::kReduce:
      text = std::string("fold ") + (step.raw ? "raw " : "") + (step.final ? "final " : "") + bytes + " of [" +
             describe_sources(schedule, step) + "] into " + describe_range(step.range);
      break;
    case StepKind::kCopy:
      text = step.range.bytes == 0 ? "wait"
                                   : "copy " + std::to_string(step.range.bytes) + " bytes from " +
                                         describe_range(step.from) + " to " + describe_range(step.range);
      break;
  }
  if (step.lends) text += step.for_result ? " by lending it for the result" : " by lending";
  if (step.past_caches) text += " past the caches";
  if (step.after_lane >= 0) {
    text += " after " + std::to_string(step.after_steps) + " steps of lane " + std::to_string(step.after_lane);
  }
  return text;
}

std::string describe_cost(const Schedule& schedule) {
  const auto frames = std::ranges::count(schedule.steps, StepKind::kSend, &Step::kind);
  return schedule.algorithm + ": sends " + std::to_string(schedule.sent_bytes_inside) +
         " bytes inside the island and " + std::to_string(schedule.sent_bytes_bridge) + " over the bridge in " +
         std::to_string(frames) + " frames; " + std::to_string(schedule.steps.size()) + " steps in " +
         std::to_string(schedule.lanes.size()) + " lanes, " + std::to_string(schedule.peers.size()) + " peers, " +
         std::to_string(schedule.scratch_bytes) + " bytes of scratch memory";
}

std::string print_schedule(const Schedule& schedule, std::size_t max_steps) {
  std::string text = describe_cost(schedule) + "\n";
  for (std::size_t i = 0; i < schedule.lanes.size(); ++i) {
    const Lane& lane = schedule.lanes[i];
    text +=
        "lane " + std::to_string(i) + (lane.bridge ? " (bridge)" : "") + ", " + std::to_string(lane.count) + " steps\n";
    const std::size_t shown = std::min<std::size_t>(lane.count, max_steps);
    for (std::size_t s = 0; s < shown; ++s)
      text += "  " + describe_step(schedule, schedule.steps[lane.first + s]) + "\n";
    if (shown < lane.count) text += "  ... " + std::to_string(lane.count - shown) + " more\n";
  }
  return text;
}

}  // namespace atl::collectives
