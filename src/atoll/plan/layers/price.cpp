// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/price.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "atoll/plan/layers/ties.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

// Returns, by pipeline and stage, the seconds of adding its items' gradients with those of the other pipelines. Between
// two cuts of any pipeline the same stages hold all items, and reduce them as one.
std::vector<std::vector<double>> reductions(const LayerCosts& costs, const std::vector<LayerPipeline>& pipelines) {
  std::vector<std::vector<double>> seconds;
  std::set<std::size_t> cuts;
  for (const LayerPipeline& pipeline : pipelines) {
    seconds.emplace_back(pipeline.stages.size(), 0);
    for (const LayerStage& stage : pipeline.stages) cuts.insert({stage.begin, stage.end});
  }
  std::vector<std::size_t> places(pipelines.size(), 0);  // of the stage that holds the current items
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const std::size_t end = *std::next(cut);
    double bytes = 0;
    for (std::size_t item = *cut; item < end; ++item) bytes += costs.request().items[item].gradient_bytes;
    std::map<std::size_t, int> holders;  // by class
    for (std::size_t r = 0; r < pipelines.size(); ++r) {
      while (pipelines[r].stages[places[r]].end < end) ++places[r];
      ++holders[pipelines[r].stages[places[r]].device];
    }
    if (bytes <= 0) continue;
    LayerLink slowest;
    for (const auto& [a, count] : holders) {
      for (const auto& [b, ignored] : holders) {
        if (a == b && count == 1) continue;
        const LayerLink& link = costs.request().links[a * costs.classes() + b];
        slowest.latency = std::max(slowest.latency, link.latency);
        slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, link.seconds_per_byte);
      }
    }
    const auto members = static_cast<double>(pipelines.size());
    const double each = 2 * (members - 1) * slowest.seconds(bytes / members);
    for (std::size_t r = 0; r < pipelines.size(); ++r) seconds[r][places[r]] += each;
  }
  return seconds;
}

void require_tied(const LayerRequest& request, const LayerPipeline& pipeline, const std::string& name) {
  for (const LayerTie& tie : request.ties) {
    if (tie.apart) continue;
    const auto [first, last] = std::minmax_element(tie.items.begin(), tie.items.end());
    for (const LayerStage& stage : pipeline.stages) {
      if (*first < stage.begin || *first >= stage.end || *last < stage.end) continue;
      refuse(name + " has " + request.items[*first].name + " and " + request.items[*last].name +
             " on different stages, but their tie does not let them be apart");
    }
  }
}

}  // namespace

LayerPipeline priced(const LayerCosts& costs, std::vector<LayerStage> stages, std::int64_t micro_batches) {
  LayerPipeline pipeline;
  pipeline.micro_batches = micro_batches;
  const auto count = static_cast<std::int64_t>(stages.size());
  for (std::size_t k = 0; k < stages.size(); ++k) {
    LayerStage& stage = stages[k];
    const std::size_t next = k + 1 < stages.size() ? stages[k + 1].device : costs.classes();
    const double compute = costs.compute(stage.device, stage.begin, stage.end, stage.recompute);
    stage.in_flight = costs.in_flight(count - static_cast<std::int64_t>(k), count, micro_batches);
    stage.forward = costs.forward(stage.device, stage.begin, stage.end);
    stage.backward = std::max(0.0, compute - stage.forward);
    stage.accumulate = costs.accumulate(stage.device, stage.begin, stage.end);
    stage.send = costs.send(stage.device, next, stage.end);
    stage.seconds = costs.busy(stage.device, next, stage.begin, stage.end, stage.recompute);
    stage.memory_bytes = costs.memory(stage.begin, stage.end, stage.recompute, stage.in_flight);
    stage.cap_bytes = costs.cap(stage.device);
    pipeline.period = std::max(pipeline.period, stage.seconds);
    pipeline.fill += compute + stage.send;
  }
  pipeline.ties = tie_seconds(costs, stages);
  pipeline.stages = std::move(stages);
  pipeline.seconds =
      costs.weight_of_busy(micro_batches) * pipeline.period + pipeline.fill / costs.chunks() + pipeline.ties;
  return pipeline;
}

LayerPlan assembled(const LayerCosts& costs, std::vector<LayerPipeline> pipelines) {
  LayerPlan plan;
  plan.micro_batch = costs.micro_batch();
  plan.fits = true;
  std::vector<std::int64_t> used(costs.classes(), 0);
  for (LayerPipeline& pipeline : pipelines) {
    plan.seconds = std::max(plan.seconds, pipeline.seconds);
    for (LayerStage& stage : pipeline.stages) {
      stage.number = used[stage.device]++;
      plan.fits = plan.fits && stage.fits();
    }
  }
  if (pipelines.size() > 1) {
    const std::vector<std::vector<double>> seconds = reductions(costs, pipelines);
    const bool overlaps = costs.request().gradients == LayerOverlap::kOverlapped;
    double end = plan.seconds;
    for (std::size_t r = 0; r < pipelines.size(); ++r) {
      // Stage k has its gradients when the last micro-batch has only the stages before it left on its way back.
      double ready = overlaps ? pipelines[r].seconds : plan.seconds;
      for (std::size_t k = 0; k < pipelines[r].stages.size(); ++k) {
        pipelines[r].gradients = std::max(pipelines[r].gradients, seconds[r][k]);
        end = std::max(end, ready + seconds[r][k]);
        const LayerStage& stage = pipelines[r].stages[k];
        if (overlaps) ready -= stage.backward + stage.send / 2;
      }
    }
    plan.seconds = end;
  }
  plan.pipelines = std::move(pipelines);
  return plan;
}

LayerPlan price_layers(const LayerRequest& request, const LayerPlan& plan) {
  LayerRequest any = request;  // a given plan may use any number of devices
  any.leave_out = true;
  check(any);
  if (plan.micro_batch < 1)
    refuse("the plan's micro_batch is " + std::to_string(plan.micro_batch) + ": give at least 1");
  if (plan.pipelines.empty()) refuse("the plan has no pipelines: give at least one");
  const LayerCosts costs(request, plan.micro_batch);
  std::vector<LayerPipeline> pipelines;
  std::vector<std::int64_t> used(costs.classes(), 0);
  for (const LayerPipeline& pipeline : plan.pipelines) {
    const std::string name = "pipeline " + std::to_string(pipelines.size());
    if (pipeline.micro_batches < 1) {
      refuse(name + " has " + std::to_string(pipeline.micro_batches) + " micro-batches: give at least 1");
    }
    std::size_t begin = 0;
    for (const LayerStage& stage : pipeline.stages) {
      if (stage.begin != begin || stage.end <= begin || stage.end > costs.items()) {
        refuse(name + " has a stage of items " + std::to_string(stage.begin) + " to " + std::to_string(stage.end) +
               " after item " + std::to_string(begin) + " of " + std::to_string(costs.items()) +
               ": give ranges that follow each other");
      }
      if (stage.device >= costs.classes()) refuse(name + " has a stage on an unknown class");
      if (++used[stage.device] > request.devices[stage.device].count) {
        refuse("the plan has more stages than devices of the class " + request.devices[stage.device].name);
      }
      begin = stage.end;
    }
    if (begin != costs.items()) {
      refuse(name + " ends with item " + std::to_string(begin) + " of " + std::to_string(costs.items()));
    }
    require_tied(request, pipeline, name);
    pipelines.push_back(priced(costs, pipeline.stages, pipeline.micro_batches));
  }
  return assembled(costs, std::move(pipelines));
}

}  // namespace atl::plan
