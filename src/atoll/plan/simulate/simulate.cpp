// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/simulate.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/engine.h"
#include "atoll/plan/simulate/links.h"

namespace atl::plan::simulated {
namespace {

std::string where_of(const Plan& plan, const Event& event, Links& links) {
  if (event.what == What::kReduction) return plan.reductions[as_index(event.stage)].name;
  if (event.what == What::kTransfer) {
    return plan.transports[as_index(links.path(event.rank, event.peer, false).transport)].name;
  }
  const std::string& device_class = plan.ranks[as_index(event.rank)].device_class;
  if (event.what == What::kOptimiser || event.stage < 0) return device_class;
  return "stage " + plan.pipelines[as_index(event.pipeline)].stages[as_index(event.stage)].name + " (" + device_class +
         ")";
}

// Walks from the last end back to the event that each one waited for last. A cause may continue after its effect has
// started: then only its time until there counts.
std::vector<PathPart> path_of(const Plan& plan, const std::vector<Event>& events) {
  std::vector<PathPart> parts;
  if (events.empty()) return parts;
  Links links(plan);
  std::map<std::pair<What, std::string>, PathPart> found;
  auto index = static_cast<std::int32_t>(std::ranges::max_element(events, {}, &Event::end) - events.begin());
  double until = events[as_index(index)].end;
  while (index >= 0) {
    const Event& event = events[as_index(index)];
    const double seconds = until - event.begin;
    if (seconds > 0) {
      PathPart& part = found[{event.what, where_of(plan, event, links)}];
      part.seconds += seconds;
      ++part.count;
    }
    until = event.begin;
    index = event.cause;
  }
  for (const auto& [key, part] : found) parts.push_back({key.first, key.second, part.seconds, part.count});
  std::ranges::stable_sort(parts, std::greater(), &PathPart::seconds);
  return parts;
}

std::vector<RailUse> busiest(const std::vector<RailUse>& rails) {
  std::vector<RailUse> result;
  for (const RailUse& each : rails) {
    const auto same = std::find_if(result.begin(), result.end(), [&](const RailUse& other) {
      return other.name == each.name && other.direction == each.direction;
    });
    if (same == result.end()) {
      result.push_back(each);
    } else if (each.share > same->share) {
      *same = each;
    }
  }
  return result;
}

// Returns by stage whether gradients of inputs are computed apart.
std::vector<bool> split_stages(const Pipeline& pipeline) {
  std::vector<bool> is_split(pipeline.stages.size(), false);
  for (const auto& actions : pipeline.actions) {
    for (const Action& action : actions) {
      if (action.work == Work::kInput) is_split[as_index(action.stage)] = true;
    }
  }
  return is_split;
}

// Returns the maximum over all ranks of their work, alone or with the path of the first micro-batch to them and the
// path back from them.
double least_seconds(const Plan& plan, const Engine& engine, bool with_ways) {
  struct OfRank {
    double to = kInfinity;
    double back = kInfinity;
    double work = 0;
    double before_back = 0;  // forwards, and the part of backwards before their input's gradient is ready
    double optimiser = 0;
  };
  double bound = 0;
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const std::vector<bool> is_split = split_stages(plan.pipelines[i]);
    const std::vector<Engine::StageRun>& stages = engine.stages(i);
    const double count = plan.pipelines[i].micro_batches;
    std::map<int, OfRank> ranks;
    double to = 0;    // until the first forward
    double back = 0;  // after the last backward
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      StageSeconds seconds = stages[stage].seconds;
      if (!is_split[stage]) seconds.input = seconds.backward;
      if (stages[stage].back != nullptr) {
        const Engine::StageRun& before = stages[stage - 1];
        to += alone_seconds(*before.there, before.given->boundary_bytes);
        back += alone_seconds(*stages[stage].back, before.given->boundary_gradient_bytes);
      }
      OfRank& rank = ranks[stages[stage].rank];
      rank.to = std::min(rank.to, to);
      rank.back = std::min(rank.back, back);
      rank.work += count * (seconds.forward + seconds.backward) + (count - 1) * seconds.accumulate;
      rank.before_back += count * (seconds.forward + seconds.input);
      rank.optimiser += seconds.optimiser;
      to += seconds.forward;
      back += seconds.input;
    }
    for (const auto& [index, rank] : ranks) {
      bound = std::max(bound, rank.work + rank.optimiser + (with_ways ? rank.to : 0));
      if (with_ways) bound = std::max(bound, rank.to + rank.before_back + rank.back);
    }
    if (with_ways) bound = std::max(bound, to + back);  // one micro-batch alone
  }
  return bound;
}

// The longest that any rank needs for each step after the first.
double later_step_seconds(const Plan& plan, const std::vector<Event>& events) {
  std::vector<double> first(plan.ranks.size(), 0);
  double longest = 0;
  for (const Event& event : events) {
    if (event.what != What::kOptimiser) continue;
    if (event.step == 0) first[as_index(event.rank)] = event.end;
    if (event.step == plan.steps - 1) longest = std::max(longest, event.end - first[as_index(event.rank)]);
  }
  return longest / (plan.steps - 1);
}

}  // namespace

const char* to_string(What what) noexcept {
  constexpr const char* kTexts[] = {"forward",   "backward", "backward (input)", "backward (weight)",
                                    "optimiser", "transfer", "reduction"};
  return kTexts[static_cast<int>(what)];
}

Simulation simulate(const Plan& plan) {
  check(plan);
  Engine engine(plan);
  engine.run();
  Simulation simulation = engine.result();
  simulation.rails = busiest(simulation.rails);
  simulation.path = path_of(plan, simulation.events);
  // Steps overlap a little, so that only the work itself bounds the time of one among several.
  simulation.bound = least_seconds(plan, engine, plan.steps == 1);
  simulation.step_seconds = simulation.seconds;
  if (plan.steps > 1) simulation.step_seconds = later_step_seconds(plan, simulation.events);
  double waits = 0;
  double all = 0;
  for (const RankUse& use : simulation.ranks) {
    if (use.pipeline < 0) continue;
    waits += use.transfers + use.idle;
    all += simulation.seconds;
  }
  simulation.bubble = all > 0 ? waits / all : 0;
  return simulation;
}

}  // namespace atl::plan::simulated
