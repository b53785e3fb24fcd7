// SPDX-License-Identifier: Apache-2.0
// What an operation waits for when none of its lanes can continue, and for how long.
#include <algorithm>

#include "atoll/collectives/schedule/executor_run.h"

namespace atl::collectives {
namespace {

constexpr std::chrono::milliseconds kMaxExecutorSleep{100};
// A rank that waits for a rank that is itself waiting delays its own timeout by this, so that the rank next to the
// cause reports first.
constexpr std::chrono::milliseconds kTimeoutGrace{150};

}  // namespace

// Visits the peers whose frame or credit a lane is waiting for; after the lanes, those that still read what was lent.
template <typename Visit>
void Executor::for_each_awaited(const Run& run, Visit&& visit) const {
  for (const std::uint32_t lane_index : open_lanes_) {
    const LaneState& lane = lanes_[lane_index];
    const Step& step = run.schedule.steps[run.schedule.lanes[lane_index].first + lane.next];
    if (step.after_lane >= 0 && lanes_[static_cast<std::size_t>(step.after_lane)].next < step.after_steps) continue;
    if (step.kind == StepKind::kSend && run.is_loaded(step.range)) visit(step.peer, step.flow, true);
    if (step.kind == StepKind::kReceive) visit(step.peer, step.flow, false);
    for (const auto& [peer, local] : run.schedule.sources_of(step)) {
      if (peer < 0) continue;
      transport::Channel* known = channels_[static_cast<std::size_t>(peer) * 2 + static_cast<std::size_t>(step.flow)];
      if (!known || !known->front()) visit(peer, step.flow, false);
    }
  }
  if (!open_lanes_.empty() || !has_lent_) return;
  for (const int peer : run.schedule.peers) {
    for (const Flow flow : {Flow::kUp, Flow::kDown}) {
      if (!has_returned(peer, flow)) visit(peer, flow, true);
    }
  }
}

void Executor::wait(Run& run, transport::Sleeper& sleeper) {
  check_ended(run);
  if (any_left_.load(std::memory_order_acquire)) check_left(run);
  bool bridge = false;
  for_each_awaited(run, [&](int peer, Flow, bool) { bridge = bridge || !topology_.same_island(ports_.rank(), peer); });
  const auto blocked_since = Clock::now();
  if (blocked_since >= run.deadline.when() && blocked_since >= run.deadline.when() + patience(run)) time_out(run);
  if (!run.report_at) {
    run.stalled_since = blocked_since;
    run.report_at = blocked_since + until_next_check(0);
  }
  bool moved = false;
  do {
    sleeper.wait_briefly(run.awaits_input ? kPauseForInput
                                          : std::max<std::chrono::nanoseconds>(
                                                run.deadline.remaining(kMaxExecutorSleep), kTimeoutGrace / 10));
    check_ended(run);
    const auto now = Clock::now();
    if (now >= run.deadline.when()) break;
    if (now >= *run.report_at) {
      stalls_.on_stall(stall_of(run));
      run.report_at = now + until_next_check(++run.checks);
    }
    moved = advance_lanes(run) || (open_lanes_.empty() && have_returned(run));
  } while (!moved && !any_left_.load(std::memory_order_acquire));
  if (moved) run.report_at.reset();
  if (bridge) split_.bridge_ns += elapsed_ns(blocked_since);
}

Stall Executor::stall_of(const Run& run) {
  awaited_.clear();
  for_each_awaited(run, [&](int peer, Flow, bool) {
    if (std::find(awaited_.begin(), awaited_.end(), peer) == awaited_.end()) awaited_.push_back(peer);
  });
  return {run.signature.sequence, run.name(), awaited_, run.entered, run.stalled_since};
}

void Executor::check_left(Run& run) {
  // Everything that a peer sent before it left is in the channel by now: check once more before giving up on it.
  if (advance_lanes(run)) return run.report_at.reset();
  for_each_awaited(run, [&](int peer, Flow flow, bool sending) {
    if (!left_[static_cast<std::size_t>(peer)].load()) return;
    if (!sending && channel(peer, flow).front()) return;
    if (sending && open_lanes_.empty() && has_returned(peer, flow)) return;
    throw Error(ErrorKind::kPeerLost, "rank " + std::to_string(peer) + " has left the group");
  });
}

// Returns how long to wait beyond the deadline. A device is this rank's own, and contributions from inside the island
// come straight from their origin; those over the bridge, and results, depend on other ranks.
std::chrono::milliseconds Executor::patience(const Run& run) const {
  int steps = run.awaits_input ? 0 : 2;
  for_each_awaited(run, [&](int peer, Flow flow, bool) {
    if (flow == Flow::kUp) steps = std::min(steps, topology_.same_island(ports_.rank(), peer) ? 0 : 1);
  });
  return steps * kTimeoutGrace;
}

void Executor::time_out(Run& run) {
  std::string waited;
  for_each_awaited(run, [&](int peer, Flow flow, bool sending) {
    const bool bridge = !topology_.same_island(ports_.rank(), peer);
    waited += (waited.empty() ? "" : "; ") + std::string(sending ? "sending to rank " : "waiting for rank ") +
              std::to_string(peer) + (bridge ? " over the bridge" : " inside the island") +
              (flow == Flow::kUp ? " (contributions)" : " (results)") + ports_.missing_link(peer);
  });
  if (run.awaits_input)
    waited += (waited.empty() ? "" : "; ") + std::string("waiting for its input to arrive from the device");
  const std::string why = stalls_.explain(stall_of(run));
  throw Error(ErrorKind::kTimeout, run.where(ports_.rank()) + " timed out: " + (waited.empty() ? "blocked" : waited) +
                                       (why.empty() ? "" : "; " + why));
}

}  // namespace atl::collectives
