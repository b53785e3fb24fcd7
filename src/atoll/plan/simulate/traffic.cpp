// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/engine.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {

// Returns the path of the input of `consumer` to its stage; null on the same rank.
const Path* Engine::path_to(const Line& line, const Action& consumer) const {
  return consumer.work == Work::kForward ? line.stages[as_index(consumer.stage - 1)].there
                                         : line.stages[as_index(consumer.stage + 1)].back;
}

double Engine::bytes_to(const Line& line, const Action& consumer) const {
  return consumer.work == Work::kForward ? line.stages[as_index(consumer.stage - 1)].given->boundary_bytes
                                         : line.stages[as_index(consumer.stage)].given->boundary_gradient_bytes;
}

// Passes on the output of `action`, which has just ended on `rank`.
void Engine::deliver(int rank, const Action& action) {
  Lane& its = lane(rank);
  Line& pipeline = line(its.pipeline);
  const bool is_forward = action.work == Work::kForward;
  const Action consumer{is_forward ? Work::kForward : Work::kInput, action.stage + (is_forward ? 1 : -1),
                        action.micro_batch};
  if (consumer.stage < 0 || as_index(consumer.stage) >= pipeline.stages.size()) return;
  const std::size_t index = unit_at(its, consumer);
  Edge& edge = is_forward ? pipeline.units[index].input : pipeline.units[index].gradient;
  const int to = pipeline.stages[as_index(consumer.stage)].rank;
  const Path* path = path_to(pipeline, consumer);
  const double bytes = bytes_to(pipeline, consumer);
  if (path == nullptr || alone_seconds(*path, bytes) <= 0) {
    edge.arrived = its.last;
    if (path != nullptr) wake(to);
    return;
  }
  if (path->is_blocking) {
    ++its.sends;
    edge.offered = its.last;
    if (!edge.is_wanted) return;
  }
  send({path, its.pipeline, index, !is_forward, -1, 0}, rank, to, bytes, its.last);
}

// Handles a rank that has reached `action` before its input arrived.
void Engine::want(int rank, const Action& action) {
  Lane& its = lane(rank);
  Line& pipeline = line(its.pipeline);
  const Path* path = path_to(pipeline, action);
  Edge& edge = *edge_of(its, action);
  if (path == nullptr || !path->is_blocking || edge.is_wanted) return;
  edge.is_wanted = true;
  if (edge.offered < 0) return;
  const bool is_forward = action.work == Work::kForward;
  const std::size_t index = unit_at(its, action);
  const int from = pipeline.stages[as_index(action.stage + (is_forward ? -1 : 1))].rank;
  send({path, its.pipeline, index, !is_forward, -1, 0}, from, rank, bytes_to(pipeline, action), its.last);
}

void Engine::send(const Transfer& transfer, int from, int to, double bytes, std::int32_t cause) {
  if (free_transfers_.empty()) {
    free_transfers_.push_back(static_cast<int>(transfers_.size()));
    transfers_.push_back(transfer);
  }
  const int index = free_transfers_.back();
  free_transfers_.pop_back();
  const Line& pipeline = line(transfer.pipeline);
  const auto per_stage = static_cast<int>(pipeline.units.size() / pipeline.stages.size());
  const int micro_batches = plan_.pipelines[as_index(transfer.pipeline)].micro_batches;
  const auto stage = static_cast<int>(transfer.unit) / per_stage + (transfer.is_gradient ? 1 : -1);
  const int on_stage = static_cast<int>(transfer.unit) % per_stage;
  Transfer& started = transfers_[as_index(index)];
  started = transfer;
  started.event = add({What::kTransfer, from, to, transfer.pipeline, stage, on_stage % micro_batches,
                       on_stage / micro_batches, cause, 0, 0, bytes});
  for (const int each : {from, to}) {
    if (lane(each).on_their_way++ == 0) lane(each).since = now_;
  }
  lane(from).use.sent_bytes += bytes;
  started.leg = static_cast<std::size_t>(-1);
  go_on(index);
}

// Starts the next leg of the transfer, or ends it.
void Engine::go_on(int transfer) {
  Transfer& its = transfers_[as_index(transfer)];
  if (++its.leg == its.path->legs.size()) {
    arrive(transfer);
    return;
  }
  const Leg& leg = its.path->legs[its.leg];
  const double bytes = events_[as_index(its.event)].bytes;
  if (bytes <= 0) {
    after(leg.latency, Kind::kLegOver, transfer);
    return;
  }
  const int flow = links_.rails().start(leg.rails, leg.most, bytes, now_);
  if (as_index(flow) >= owners_.size()) owners_.resize(as_index(flow) + 1);
  owners_[as_index(flow)] = {false, transfer};
}

Engine::Edge& Engine::edge_of(const Transfer& transfer) {
  Unit& unit = line(transfer.pipeline).units[transfer.unit];
  return transfer.is_gradient ? unit.gradient : unit.input;
}

void Engine::arrive(int transfer) {
  const Transfer its = transfers_[as_index(transfer)];
  free_transfers_.push_back(transfer);
  Event& event = events_[as_index(its.event)];
  event.end = now_;
  const int from = event.rank;
  const int to = event.peer;
  for (const int each : {from, to}) {
    if (--lane(each).on_their_way == 0) lane(each).use.communicates += now_ - lane(each).since;
  }
  edge_of(its).arrived = its.event;
  if (its.path->is_blocking) {
    --lane(from).sends;
    lane(from).last_send = its.event;
    wake(from);
  }
  wake(to);
}

// With the last micro-batch's gradients of weights, parts of the stage's gradients become complete one after another.
void Engine::announce(int rank, const Action& action, double seconds) {
  const Lane& its = lane(rank);
  const StageRun& stage = stage_of(its, action.stage);
  if (stage.gradients < plan_.pipelines[as_index(its.pipeline)].micro_batches) return;
  const int buckets = plan_.reduction.buckets;
  for (const int group : stage.groups) {
    for (int bucket = 0; bucket < buckets; ++bucket) {
      readies_.push_back({group, as_index(bucket), its.last});
      after(seconds * (static_cast<double>(bucket + 1) / buckets), Kind::kReady, static_cast<int>(readies_.size()) - 1);
    }
  }
}

void Engine::announce_all(int rank) {
  const Lane& its = lane(rank);
  for (const int stage : its.stages) {
    for (const int group : stage_of(its, stage).groups) {
      for (std::size_t bucket = 0; bucket < groups_[as_index(group)].ready.size(); ++bucket) {
        ready({group, bucket, its.last});
      }
    }
  }
}

void Engine::ready(const Ready& ready) {
  Group& group = groups_[as_index(ready.group)];
  if (as_index(++group.ready[ready.bucket]) < group.members.size()) return;
  if (group.bucket == ready.bucket && !group.is_running) reduce(ready.group, ready.cause);
}

void Engine::reduce(int index, std::int32_t cause) {
  Group& group = groups_[as_index(index)];
  const double bytes = plan_.reductions[as_index(index)].bytes / static_cast<double>(group.ready.size());
  const int step = lane(group.ranks.front()).step;
  group.is_running = true;
  group.phase = 0;
  group.event =
      add({What::kReduction, -1, -1, -1, index, static_cast<std::int32_t>(group.bucket), step, cause, 0, 0, bytes});
  run_phase(index);
}

void Engine::run_phase(int index) {
  Group& group = groups_[as_index(index)];
  const Phase& phase = group.phases[group.phase];
  group.flows = phase.flows.size();
  if (phase.flows.empty()) after(phase.latency, Kind::kPhaseOver, index);
  for (const ReductionFlow& each : phase.flows) {
    const int flow = links_.rails().start(each.leg->rails, each.leg->most, each.bytes, now_);
    if (as_index(flow) >= owners_.size()) owners_.resize(as_index(flow) + 1);
    owners_[as_index(flow)] = {true, index};
  }
}

void Engine::end_phase(int index) {
  Group& group = groups_[as_index(index)];
  if (++group.phase < group.phases.size()) {
    run_phase(index);
    return;
  }
  events_[as_index(group.event)].end = now_;
  group.is_running = false;
  if (++group.bucket < group.ready.size()) {
    if (as_index(group.ready[group.bucket]) == group.members.size()) reduce(index, group.event);
    return;
  }
  group.bucket = 0;
  std::fill(group.ready.begin(), group.ready.end(), 0);
  for (const int rank : group.ranks) {
    --lane(rank).open_reductions;
    lane(rank).last_reduction = group.event;
  }
  for (const int rank : group.ranks) wake(rank);
}

// Describes what the rank waits for, which `other` would have to do; -1 if no rank can do it.
std::string Engine::waits(int rank, int& other) {
  Lane& its = lane(rank);
  Line& pipeline = line(its.pipeline);
  const std::string name = "rank " + std::to_string(rank) + " (pipeline " + std::to_string(its.pipeline) + ")";
  if (its.next < its.actions->size()) {
    const Action& action = (*its.actions)[its.next];
    const std::string waiting = name + " waits at " + to_text(action) + " for ";
    const Unit& unit = unit_of(its, action);
    if (action.work != Work::kForward && unit.forward < 0) {
      other = rank;
      return waiting + to_text({Work::kForward, action.stage, action.micro_batch}) +
             ", which comes later in its actions";
    }
    if (action.work == Work::kWeight && unit.backward < 0) {
      other = rank;
      return waiting + to_text({Work::kInput, action.stage, action.micro_batch}) + ", which comes later in its actions";
    }
    const Edge* edge = edge_of(its, action);
    if (edge != nullptr && edge->arrived < 0) {
      const bool is_forward = action.work == Work::kForward;
      const int stage = action.stage + (is_forward ? -1 : 1);
      other = pipeline.stages[as_index(stage)].rank;
      return waiting + (is_forward ? "the output" : "the gradient") + " of stage " + std::to_string(stage) +
             " from rank " + std::to_string(other);
    }
  }
  if (its.sends > 0) {
    // Finds the first offered input that no rank has received.
    for (std::size_t i = 0; i < pipeline.units.size(); ++i) {
      const auto stage = static_cast<int>(i / (pipeline.units.size() / pipeline.stages.size()));
      for (const Edge* edge : {&pipeline.units[i].input, &pipeline.units[i].gradient}) {
        if (edge->offered < 0 || edge->arrived >= 0 || events_[as_index(edge->offered)].rank != rank) continue;
        other = pipeline.stages[as_index(stage)].rank;
        return name + " waits until rank " + std::to_string(other) + " receives what it sends to stage " +
               std::to_string(stage);
      }
    }
  }
  for (const Group& group : groups_) {
    if (group.phases.empty() || std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) continue;
    for (const int member : group.ranks) {
      if (member == rank || lane(member).next == lane(member).actions->size()) continue;
      other = member;
      return name + " waits for gradients of rank " + std::to_string(other);
    }
  }
  for (int each = 0; each < static_cast<int>(lanes_.size()); ++each) {
    if (lane(each).pipeline >= 0 && !lane(each).is_done && lane(each).next < lane(each).actions->size()) other = each;
  }
  return name + " waits for the other ranks";
}

void Engine::stuck() {
  int rank = 0;
  while (lane(rank).pipeline < 0 || lane(rank).is_done) ++rank;
  std::vector<int> ranks;
  std::vector<std::string> reasons;
  while (rank >= 0 && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
    ranks.push_back(rank);
    int other = -1;
    reasons.push_back(waits(rank, other));
    rank = other;
  }
  // Ranks before the cycle only wait for it.
  const auto first = rank < 0 ? 0 : std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  constexpr std::ptrdiff_t kMax = 8;
  std::string message = "the actions deadlock after " + number(now_) + " s: ";
  for (auto i = first; i < static_cast<std::ptrdiff_t>(reasons.size()) && i < first + kMax; ++i) {
    message.append(i > first ? "; " : "").append(reasons[static_cast<std::size_t>(i)]);
  }
  if (static_cast<std::ptrdiff_t>(reasons.size()) > first + kMax) message.append("; and so on around the cycle");
  refuse(message + ". Change the order of these actions");
}

}  // namespace atl::plan::simulated
