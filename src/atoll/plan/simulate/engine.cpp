// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/engine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace atl::plan::simulated {
namespace {

// By Work.
constexpr double StageSeconds::*kSecondsOf[] = {&StageSeconds::forward, &StageSeconds::backward, &StageSeconds::input,
                                                &StageSeconds::weight};

}  // namespace

StageSeconds seconds_of(const Stage& stage, const Rank& rank) {
  StageSeconds seconds;
  seconds.forward = stage.forward.of(rank.device_class) * rank.slowdown;
  seconds.backward = stage.backward.of(rank.device_class) * rank.slowdown;
  seconds.weight = stage.weight ? stage.weight->of(rank.device_class) * rank.slowdown : seconds.backward / 2;
  seconds.input = seconds.backward - seconds.weight;
  seconds.accumulate = stage.accumulate.of(rank.device_class) * rank.slowdown;
  seconds.optimiser = stage.optimiser.of(rank.device_class) * rank.slowdown;
  return seconds;
}

Engine::Engine(const Plan& plan) : plan_(plan), links_(plan), lines_(plan.pipelines.size()), lanes_(plan.ranks.size()) {
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i) make_line(i);
  make_groups();
}

void Engine::make_line(int pipeline) {
  const Pipeline& given = plan_.pipelines[as_index(pipeline)];
  const auto stages = static_cast<int>(given.stages.size());
  const std::vector<int> places =
      places_of(given.actions, {static_cast<int>(given.ranks.size()), stages, given.micro_batches},
                "pipeline " + std::to_string(pipeline));
  const auto rank_of = [&](int stage) { return given.ranks[as_index(places[as_index(stage)])]; };
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = rank_of(stage);
    const auto path = [&](int other) -> const Path* {
      if (other < 0 || other >= stages || rank_of(other) == rank) return nullptr;
      return &links_.path(rank, rank_of(other), false);
    };
    const Stage& made = given.stages[as_index(stage)];
    line(pipeline).stages.push_back(
        {&made, rank, seconds_of(made, plan_.ranks[as_index(rank)]), path(stage + 1), path(stage - 1)});
    lane(rank).stages.push_back(stage);
    lane(rank).held_bytes += made.weight_bytes;
  }
  line(pipeline).units.resize(as_index(stages) * as_index(plan_.steps) * as_index(given.micro_batches));
  for (std::size_t place = 0; place < given.ranks.size(); ++place) {
    Lane& its = lane(given.ranks[place]);
    its.pipeline = its.use.pipeline = pipeline;
    its.actions = &given.actions[place];
    its.use.peak_bytes = its.held_bytes;
    ++active_;
  }
}

void Engine::make_groups() {
  for (std::size_t i = 0; i < plan_.reductions.size(); ++i) {
    const Reduction& given = plan_.reductions[i];
    Group group;
    group.members = given.members;
    for (const Member& member : given.members) {
      const int rank = line(member.pipeline).stages[as_index(member.stage)].rank;
      if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) group.ranks.push_back(rank);
    }
    std::sort(group.ranks.begin(), group.ranks.end());
    group.phases = phases_of(group.ranks, given.bytes / plan_.reduction.buckets, plan_, links_);
    group.ready.assign(as_index(plan_.reduction.buckets), 0);
    groups_.push_back(std::move(group));
    if (groups_.back().phases.empty()) continue;
    for (const Member& member : given.members) {
      line(member.pipeline).stages[as_index(member.stage)].groups.push_back(static_cast<int>(i));
    }
    for (const int rank : groups_.back().ranks) lane(rank).open_reductions = ++lane(rank).reductions;
  }
}

std::size_t Engine::unit_at(const Lane& lane, const Action& action) const {
  const Line& line = lines_[as_index(lane.pipeline)];
  const std::size_t on_stage = line.units.size() / line.stages.size();
  const int micro_batches = plan_.pipelines[as_index(lane.pipeline)].micro_batches;
  return as_index(action.stage) * on_stage + as_index(lane.step) * as_index(micro_batches) +
         as_index(action.micro_batch);
}

void Engine::after(double seconds, Kind kind, int index) { calendar_.push({now_ + seconds, order_++, kind, index}); }

std::int32_t Engine::add(Event event) {
  event.begin = now_;
  events_.push_back(event);
  return static_cast<std::int32_t>(events_.size()) - 1;
}

void Engine::run() {
  for (int rank = 0; rank < static_cast<int>(lanes_.size()); ++rank) {
    if (lane(rank).pipeline >= 0) wake(rank);
  }
  FairRails& rails = links_.rails();
  while (true) {
    rails.settle(now_);
    const double next = std::min(calendar_.empty() ? kInfinity : calendar_.top().time, rails.next());
    if (!std::isfinite(next)) break;
    now_ = std::max(now_, next);
    for (const int flow : rails.finish(now_)) {
      const Owner owner = owners_[as_index(flow)];
      if (!owner.is_reduction) {
        Transfer& transfer = transfers_[as_index(owner.index)];
        const Leg& leg = transfer.path->legs[transfer.leg];
        after(tail_seconds(*transfer.path, leg, events_[as_index(transfer.event)].bytes), Kind::kLegOver, owner.index);
      } else if (--groups_[as_index(owner.index)].flows == 0) {
        const Group& group = groups_[as_index(owner.index)];
        after(group.phases[group.phase].latency, Kind::kPhaseOver, owner.index);
      }
    }
    while (!calendar_.empty() && calendar_.top().time <= now_) {
      const Entry entry = calendar_.top();
      calendar_.pop();
      switch (entry.kind) {
        case Kind::kComputed: end_action(entry.index); break;
        case Kind::kLegOver: go_on(entry.index); break;
        case Kind::kPhaseOver: end_phase(entry.index); break;
        case Kind::kReady: ready(readies_[as_index(entry.index)]); break;
      }
    }
  }
  for (const Lane& each : lanes_) {
    if (each.pipeline >= 0 && !each.is_done) stuck();
  }
}

// Starts what the rank can do now.
void Engine::wake(int rank) {
  Lane& its = lane(rank);
  if (its.is_busy || its.is_done) return;
  if (its.next == its.actions->size()) {
    begin_optimiser(rank);
    return;
  }
  const Action& action = (*its.actions)[its.next];
  if (is_there(rank, action) && its.sends == 0) begin(rank, action);
}

Engine::Edge* Engine::edge_of(const Lane& lane, const Action& action) {
  Unit& unit = unit_of(lane, action);
  if (action.work == Work::kForward) return action.stage > 0 ? &unit.input : nullptr;
  if (action.work == Work::kWeight) return nullptr;
  return as_index(action.stage) + 1 < line(lane.pipeline).stages.size() ? &unit.gradient : nullptr;
}

bool Engine::is_there(int rank, const Action& action) {
  Lane& its = lane(rank);
  const Unit& unit = unit_of(its, action);
  if (action.work == Work::kWeight) return unit.backward >= 0;
  if (action.work != Work::kForward && unit.forward < 0) return false;
  const Edge* edge = edge_of(its, action);
  if (edge == nullptr || edge->arrived >= 0) return true;
  want(rank, action);
  return false;
}

// Returns the latest to end of the lane's own last event, its last send and `other`.
std::int32_t Engine::latest(const Lane& lane, std::int32_t other) const {
  std::int32_t result = lane.last;
  for (const std::int32_t each : {lane.last_send, other}) {
    if (each >= 0 && (result < 0 || end_of(each) > end_of(result))) result = each;
  }
  return result;
}

// Accounts for the time that the rank has waited since its last event.
void Engine::account(Lane& lane, std::int32_t cause) {
  const double since = end_of(lane.last);
  const double wait = now_ - since;
  if (wait <= 0) return;
  double known = 0;
  if (cause >= 0 && cause != lane.last) {
    const Event& event = events_[as_index(cause)];
    known = std::max(0.0, now_ - std::max(since, event.begin));
    if (event.what == What::kTransfer) {
      lane.use.transfers += known;
    } else if (event.what == What::kReduction) {
      lane.use.reduces += known;
    } else {
      known = 0;
    }
  }
  lane.use.idle += wait - known;
}

void Engine::begin(int rank, const Action& action) {
  Lane& its = lane(rank);
  StageRun& stage = stage_of(its, action.stage);
  const Edge* edge = edge_of(its, action);
  const std::int32_t cause = latest(its, edge == nullptr ? -1 : edge->arrived);
  account(its, cause);
  double seconds = stage.seconds.*kSecondsOf[static_cast<int>(action.work)];
  const bool has_gradients = action.work == Work::kBackward || action.work == Work::kWeight;
  if (has_gradients && stage.gradients++ > 0) seconds += stage.seconds.accumulate;
  its.last =
      add({static_cast<What>(action.work), rank, -1, its.pipeline, action.stage, action.micro_batch, its.step, cause});
  events_.back().end = now_ + seconds;
  its.use.computes += seconds;
  its.is_busy = true;
  if (action.work == Work::kForward) {
    stage.most_in_flight = std::max(stage.most_in_flight, ++stage.in_flight);
    its.held_bytes += stage.given->activation_bytes;
    its.use.peak_bytes = std::max(its.use.peak_bytes, its.held_bytes);
  }
  if (plan_.reduction.overlaps && has_gradients) announce(rank, action, seconds);
  after(seconds, Kind::kComputed, rank);
}

void Engine::end_action(int rank) {
  Lane& its = lane(rank);
  its.is_busy = false;
  if (its.next == its.actions->size()) {
    end_step(rank);
    return;
  }
  const Action& action = (*its.actions)[its.next++];
  Unit& unit = unit_of(its, action);
  if (action.work == Work::kForward) unit.forward = its.last;
  if (action.work == Work::kBackward || action.work == Work::kInput) unit.backward = its.last;
  if (action.work == Work::kBackward || action.work == Work::kWeight) {
    StageRun& stage = stage_of(its, action.stage);
    --stage.in_flight;
    its.held_bytes -= stage.given->activation_bytes;
  }
  if (action.work != Work::kWeight) deliver(rank, action);
  wake(rank);
}

void Engine::begin_optimiser(int rank) {
  Lane& its = lane(rank);
  if (!plan_.reduction.overlaps && !its.has_gradients) {
    its.has_gradients = true;
    announce_all(rank);
  }
  if (its.open_reductions > 0 || its.sends > 0 || its.is_at_barrier) return;
  const std::int32_t cause = latest(its, its.last_reduction);
  if (!plan_.clips) {
    optimise(rank, cause);
    return;
  }
  its.is_at_barrier = true;
  if (++at_barrier_ < active_) return;
  at_barrier_ = 0;
  for (int other = 0; other < static_cast<int>(lanes_.size()); ++other) {
    if (lane(other).pipeline >= 0) optimise(other, cause);
  }
}

void Engine::optimise(int rank, std::int32_t cause) {
  Lane& its = lane(rank);
  account(its, cause);
  double seconds = 0;
  for (const int stage : its.stages) seconds += stage_of(its, stage).seconds.optimiser;
  const int stage = its.stages.empty() ? -1 : its.stages.front();
  its.last = add({What::kOptimiser, rank, -1, its.pipeline, stage, -1, its.step, cause});
  events_.back().end = now_ + seconds;
  its.use.optimises += seconds;
  its.is_busy = true;
  its.is_at_barrier = false;
  after(seconds, Kind::kComputed, rank);
}

void Engine::end_step(int rank) {
  Lane& its = lane(rank);
  its.next = 0;
  its.open_reductions = its.reductions;
  its.has_gradients = false;
  for (const int stage : its.stages) stage_of(its, stage).gradients = 0;
  if (++its.step < plan_.steps) {
    wake(rank);
  } else {
    its.is_done = true;
  }
}

Simulation Engine::result() {
  Simulation simulation;
  for (const Lane& each : lanes_) simulation.seconds = std::max(simulation.seconds, end_of(each.last));
  for (Lane& each : lanes_) {
    each.use.idle += simulation.seconds - end_of(each.last);
    simulation.ranks.push_back(each.use);
  }
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    for (std::size_t stage = 0; stage < lines_[i].stages.size(); ++stage) {
      const StageRun& its = lines_[i].stages[stage];
      simulation.stages.push_back({static_cast<int>(i), static_cast<int>(stage), its.rank, its.most_in_flight});
    }
  }
  simulation.rails = links_.kinds();
  for (int i = 0; i < links_.rails().rails(); ++i) {
    RailUse& use = simulation.rails[as_index(i)];
    use.bytes = links_.rails().carried(i);
    if (simulation.seconds > 0) use.share = use.bytes / (links_.rails().bytes_per_second(i) * simulation.seconds);
  }
  simulation.events = std::move(events_);
  return simulation;
}

}  // namespace atl::plan::simulated
