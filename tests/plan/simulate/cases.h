// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "atoll/plan/simulate/simulate.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan::simulated::test {

using plan::test::Dice;
using plan::test::refusal;

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

inline Stage stage_of(double forward, double backward, int index = 0) {
  Stage stage;
  stage.name = std::to_string(index);
  stage.forward = {forward, {}};
  stage.backward = {backward, {}};
  return stage;
}

inline Rank rank_of(const std::string& island, const std::string& host, int index) {
  return {"rank " + std::to_string(index), island, host, island, 1, {}};
}

/// One pipeline over ranks [first, first + places), with the actions of the order.
inline Pipeline pipeline_of(Order order, int places, std::vector<Stage> stages, int micro_batches, int first = 0) {
  Pipeline pipeline;
  for (int place = 0; place < places; ++place) pipeline.ranks.push_back(first + place);
  pipeline.micro_batches = micro_batches;
  pipeline.stages = std::move(stages);
  pipeline.actions =
      actions_of(order, {places, static_cast<int>(pipeline.stages.size()), micro_batches}, "the pipeline");
  return pipeline;
}

/// One pipeline alone, each rank on its own host, all of the island "a". Bytes take no time.
inline Plan plan_of(Order order, int places, const std::vector<Stage>& stages, int micro_batches) {
  Plan plan;
  for (int place = 0; place < places; ++place)
    plan.ranks.push_back(rank_of("a", "host " + std::to_string(place), place));
  plan.pipelines.push_back(pipeline_of(order, places, stages, micro_batches));
  return plan;
}

inline std::vector<Stage> equal_stages(int count, double forward, double backward) {
  std::vector<Stage> stages;
  for (int i = 0; i < count; ++i) stages.push_back(stage_of(forward, backward, i));
  return stages;
}

/// A rail for each rank and a transport of one hop over it, for everything.
inline void link_all(Plan& plan, double bytes_per_second, double latency = 0, Each each = Each::kRank) {
  plan.rails = {{"nic", each, 1, {bytes_per_second, {}}, {bytes_per_second, {}}, false}};
  Hop hop;
  hop.latency = latency;
  plan.transports = {{"wire", {hop}, 0, false}};
  plan.links = {{}};
}

inline std::vector<Event> only(const Simulation& simulation, What what) {
  std::vector<Event> events;
  for (const Event& event : simulation.events) {
    if (event.what == what) events.push_back(event);
  }
  return events;
}

}  // namespace atl::plan::simulated::test
