// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/simulate.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {
namespace {

constexpr std::int64_t kMaxEvents = 50'000'000;
constexpr std::size_t kMaxPlanRanks = 1 << 16;

std::string numbered(const char* what, std::size_t index) { return what + std::string(" ") + std::to_string(index); }

void require_at_least(const std::string& name, std::int64_t value, std::int64_t least) {
  if (value < least) refuse(name + " is " + std::to_string(value) + ": give at least " + std::to_string(least));
}

void require_index(const std::string& name, int index, std::size_t size) {
  if (index >= 0 && as_index(index) < size) return;
  refuse(name + " is " + std::to_string(index) + ", but there are only " + std::to_string(size) + ", from 0");
}

// Bounds that keep sums of times finite.
constexpr double kMaxSeconds = 1e9;
constexpr double kMaxBytes = 1e18;
constexpr double kMaxSlowdown = 1e6;

void require_within(const std::string& name, double value, double least, double most) {
  if (value >= least && value <= most) return;
  refuse(name + " is " + number(value) + ": give " + number(least) + " to " + number(most));
}

std::string rate_in(const std::string& name, const std::string& island) { return name + "'s rate in island " + island; }

void check_amounts(const std::string& name, const Amounts& amounts) {
  require_within(name, amounts.all, 0, kMaxSeconds);
  const auto of = [&](const std::string& key) { return name + " of " + key; };
  for (const auto& [key, value] : amounts.by_name) require_within(of(key), value, 0, kMaxSeconds);
}

void check_ranks(const Plan& plan) {
  if (plan.ranks.empty()) refuse("the plan has no ranks: give at least one");
  if (plan.ranks.size() > kMaxPlanRanks) {
    refuse("the plan has " + std::to_string(plan.ranks.size()) + " ranks: at most " + std::to_string(kMaxPlanRanks) +
           " can be simulated");
  }
  for (std::size_t i = 0; i < plan.ranks.size(); ++i) {
    const Rank& rank = plan.ranks[i];
    require_within(numbered("rank", i) + "'s slowdown", rank.slowdown, 1 / kMaxSlowdown, kMaxSlowdown);
    if (rank.memory_bytes) require_amount(numbered("rank", i) + "'s memory_bytes", *rank.memory_bytes);
  }
}

void check_rails(const Plan& plan) {
  for (const Rail& rail : plan.rails) {
    const std::string name = "the rail " + rail.name;
    require_at_least(name + "'s count", rail.count, 1);
    for (const Amounts* amounts : {&rail.out, &rail.in}) {
      if (rail.each == Each::kJob && !amounts->by_name.empty()) {
        refuse(name + " is one for the job, but has rates by island: give one number");
      }
      if (amounts->by_name.empty()) require_within(name + "'s rate", amounts->all, 1, kMaxBytes);
      for (const auto& [island, rate] : amounts->by_name) {
        require_within(rate_in(name, island), rate, 1, kMaxBytes);
      }
      for (const Rank& rank : plan.ranks) {
        if (!amounts->find(rank.island)) refuse(name + " has no rate for the island " + rank.island + ": give one");
      }
    }
  }
}

void check_links(const Plan& plan) {
  for (const Transport& transport : plan.transports) {
    const std::string name = "the transport " + transport.name;
    require_within(name + "'s chunk_bytes", transport.chunk_bytes, 0, kMaxBytes);
    if (transport.chunk_bytes > 0) require_within(name + "'s chunk_bytes", transport.chunk_bytes, 1, kMaxBytes);
    for (std::size_t i = 0; i < transport.hops.size(); ++i) {
      const Hop& hop = transport.hops[i];
      const std::string which = numbered((name + "'s hop").c_str(), i);
      require_index(which + "'s rail", hop.rail, plan.rails.size());
      require_within(which + "'s latency", hop.latency, 0, kMaxSeconds);
      require_at_least(which + "'s stripes", hop.stripes, 0);
      require_within(which + "'s most_bytes_per_second", hop.most_bytes_per_second, 1, kInfinity);
    }
  }
  for (std::size_t i = 0; i < plan.links.size(); ++i) {
    require_index(numbered("link rule", i) + "'s transport", plan.links[i].transport, plan.transports.size());
    if (!plan.links[i].islands.empty() && plan.links[i].islands.size() != 2) {
      refuse(numbered("link rule", i) + " names " + counted(plan.links[i].islands.size(), "island") +
             ": give two, or none");
    }
  }
}

void check_stage(const std::string& name, const Stage& stage) {
  check_amounts(name + "'s forward", stage.forward);
  check_amounts(name + "'s backward", stage.backward);
  check_amounts(name + "'s accumulate", stage.accumulate);
  check_amounts(name + "'s optimiser", stage.optimiser);
  if (stage.weight) check_amounts(name + "'s weight", *stage.weight);
  const std::pair<const char*, double> bytes[] = {{"boundary_bytes", stage.boundary_bytes},
                                                  {"boundary_gradient_bytes", stage.boundary_gradient_bytes},
                                                  {"gradient_bytes", stage.gradient_bytes},
                                                  {"weight_bytes", stage.weight_bytes},
                                                  {"activation_bytes", stage.activation_bytes}};
  for (const auto& [key, value] : bytes) require_within(name + "'s " + key, value, 0, kMaxBytes);
}

// Checks the costs of the stage on its rank.
void check_times(const std::string& name, const Stage& stage, const std::string& device_class) {
  const auto found = [&](const char* key, const Amounts& amounts) {
    const std::optional<double> seconds = amounts.find(device_class);
    if (!seconds) refuse(name + " has no " + key + " for the class " + device_class + ", on which it lies: give one");
    return *seconds;
  };
  found("forward", stage.forward);
  found("accumulate", stage.accumulate);
  found("optimiser", stage.optimiser);
  const double backward = found("backward", stage.backward);
  if (!stage.weight) return;
  const double weight = found("weight", *stage.weight);
  if (weight > backward) {
    refuse(name + " has the weight " + number(weight) + " for the class " + device_class +
           ", but it is part of the backward, " + number(backward));
  }
}

void check_pipeline(const Plan& plan, std::size_t index, std::set<int>& taken) {
  const Pipeline& pipeline = plan.pipelines[index];
  const std::string name = numbered("pipeline", index);
  if (pipeline.ranks.empty()) refuse(name + " has no ranks: give at least one");
  if (pipeline.stages.empty()) refuse(name + " has no stages: give at least one");
  if (pipeline.actions.size() != pipeline.ranks.size()) {
    refuse(name + " has " + counted(pipeline.actions.size(), "list") + " of actions for " +
           counted(pipeline.ranks.size(), "rank") + ": give one for each");
  }
  require_at_least(name + "'s micro_batches", pipeline.micro_batches, 1);
  for (const int rank : pipeline.ranks) {
    require_index(name + "'s rank", rank, plan.ranks.size());
    if (!taken.insert(rank).second) {
      refuse("rank " + std::to_string(rank) + " is in " + name + " and already has a place: give it only one");
    }
  }
  const auto stages = static_cast<int>(pipeline.stages.size());
  const Shape shape{static_cast<int>(pipeline.ranks.size()), stages, pipeline.micro_batches};
  const std::vector<int> places = places_of(pipeline.actions, shape, name);
  for (int stage = 0; stage < stages; ++stage) {
    const std::string which = name + "'s stage " + std::to_string(stage);
    check_stage(which, pipeline.stages[as_index(stage)]);
    const int rank = pipeline.ranks[as_index(places[as_index(stage)])];
    check_times(which, pipeline.stages[as_index(stage)], plan.ranks[as_index(rank)].device_class);
  }
}

void check_reductions(const Plan& plan) {
  require_at_least("the reduction's buckets", plan.reduction.buckets, 1);
  require_at_least("the reduction's leads", plan.reduction.leads, 0);
  if (plan.reduction.buckets > 10'000) {
    refuse("the reduction has " + std::to_string(plan.reduction.buckets) + " buckets: give at most 10000");
  }
  for (const Reduction& reduction : plan.reductions) {
    const std::string name = "the reduction of " + reduction.name;
    require_within(name + "'s bytes", reduction.bytes, 0, kMaxBytes);
    std::set<std::pair<int, int>> members;
    for (const Member& member : reduction.members) {
      require_index(name + "'s pipeline", member.pipeline, plan.pipelines.size());
      require_index(name + "'s stage", member.stage, plan.pipelines[as_index(member.pipeline)].stages.size());
      if (!members.emplace(member.pipeline, member.stage).second) {
        refuse(name + " names stage " + std::to_string(member.stage) + " of pipeline " +
               std::to_string(member.pipeline) + " twice: give it once");
      }
    }
  }
}

void check_size(const Plan& plan) {
  double events = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    for (const auto& actions : pipeline.actions) events += 2 * static_cast<double>(actions.size());
  }
  events += static_cast<double>(plan.reductions.size()) * plan.reduction.buckets;
  events *= plan.steps;
  if (events <= kMaxEvents) return;
  refuse("the plan has about " + number(events) + " events: at most " + std::to_string(kMaxEvents) +
         " can be simulated: use fewer steps or micro-batches");
}

}  // namespace

std::optional<double> Amounts::find(const std::string& name) const {
  if (by_name.empty()) return all;
  const auto found = by_name.find(name);
  return found == by_name.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Reduction> reductions_by_stage(const std::vector<Pipeline>& pipelines) {
  std::vector<Reduction> reductions;
  if (pipelines.empty()) return reductions;
  const std::vector<Stage>& stages = pipelines.front().stages;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    reductions.push_back({"stage " + stages[stage].name, stages[stage].gradient_bytes, {}});
  }
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    if (pipelines[i].stages.size() != stages.size()) {
      refuse("pipelines 0 and " + std::to_string(i) + " have " + std::to_string(stages.size()) + " and " +
             std::to_string(pipelines[i].stages.size()) +
             " stages: give \"reductions\" to state which stages belong together");
    }
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      reductions[stage].members.push_back({static_cast<int>(i), static_cast<int>(stage)});
    }
  }
  return reductions;
}

void check(const Plan& plan) {
  check_ranks(plan);
  check_rails(plan);
  check_links(plan);
  if (plan.pipelines.empty()) refuse("the plan has no pipelines: give at least one");
  require_at_least("steps", plan.steps, 1);
  std::set<int> taken;
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) check_pipeline(plan, i, taken);
  check_reductions(plan);
  check_size(plan);
}

}  // namespace atl::plan::simulated
