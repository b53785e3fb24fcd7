// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/costs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "atoll/plan/cost.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

// Returns the seconds of an item by interpolation between its times.
LayerTime at(const std::vector<LayerTime>& times, std::int64_t micro_batch) {
  const auto seconds = [&](double LayerTime::*part) {
    std::vector<Point> points;
    for (const LayerTime& time : times) points.push_back({time.samples, time.*part});
    return Cost::table(std::move(points)).seconds(micro_batch);
  };
  return {static_cast<double>(micro_batch), seconds(&LayerTime::forward), seconds(&LayerTime::backward),
          seconds(&LayerTime::accumulate)};
}

void add(std::vector<double>& sums, double value) { sums.push_back(sums.back() + value); }

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
    DeviceCounts holders;
    for (std::size_t r = 0; r < pipelines.size(); ++r) {
      while (pipelines[r].stages[places[r]].end < end) ++places[r];
      ++holders[pipelines[r].stages[places[r]].device];
    }
    if (bytes <= 0) continue;
    const double each = costs.reduce_seconds(bytes, holders);
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

LayerCosts::LayerCosts(const LayerRequest& request, std::int64_t micro_batch)
    : request_(request), micro_batch_(micro_batch), state_{0}, kept_{0}, inputs_{0} {
  if (request.schedule == LayerSchedule::kInterleaved) chunks_ = static_cast<double>(request.chunks);
  overlaps_ = request.transfers == LayerOverlap::kOverlapped;
  const auto samples = static_cast<double>(micro_batch);
  for (std::size_t device = 0; device < classes(); ++device) {
    std::vector<double> forward{0};
    std::vector<double> once{0};
    std::vector<double> twice{0};
    std::vector<double> added{0};
    for (const LayerItem& item : request.items) {
      const LayerTime seconds = at(item.times[device], micro_batch);
      add(forward, seconds.forward);
      add(once, seconds.forward + seconds.backward);
      add(twice, seconds.forward + seconds.backward + (item.recompute_bytes ? seconds.forward : 0));
      add(added, seconds.accumulate);
    }
    forward_.push_back(std::move(forward));
    total_[0].push_back(std::move(once));
    total_[1].push_back(std::move(twice));
    added_.push_back(std::move(added));
    cap_.push_back(request.devices[device].memory_bytes * (1 - request.margin));
  }
  std::vector<double> most;
  for (const LayerItem& item : request.items) {
    add(state_, item.state_bytes());
    add(kept_, samples * item.kept_bytes);
    add(inputs_, samples * item.recompute_bytes.value_or(item.kept_bytes));
    output_.push_back(samples * item.output_bytes);
    most.push_back(item.recompute_bytes ? samples * item.kept_bytes : 0);
  }
  most_.push_back(std::move(most));
  for (std::size_t width = 1; 2 * width <= items(); width *= 2) {
    const std::vector<double>& half = most_.back();
    std::vector<double> next;
    for (std::size_t i = 0; i + 2 * width <= items(); ++i) next.push_back(std::max(half[i], half[i + width]));
    most_.push_back(std::move(next));
  }
}

double LayerCosts::most_kept(std::size_t begin, std::size_t end) const {
  std::size_t level = 0;
  while (std::size_t{2} << level <= end - begin) ++level;
  return std::max(most_[level][begin], most_[level][end - (std::size_t{1} << level)]);
}

// While one item is recomputed and run backward, its own activations are held once.
double LayerCosts::memory(std::size_t begin, std::size_t end, bool recompute, double in_flight) const {
  double bytes = state_[end] - state_[begin];
  for (const LayerTie& tie : request_.ties) {
    const std::ptrdiff_t held = tie.held(begin, end);
    if (held > 1) bytes -= static_cast<double>(held - 1) * tie.state_bytes();
  }
  if (!recompute) return bytes + in_flight * (kept_[end] - kept_[begin]);
  return bytes + in_flight * (inputs_[end] - inputs_[begin]) + most_kept(begin, end);
}

bool LayerCosts::needs_stages() const noexcept {
  return request_.schedule == LayerSchedule::kInterleaved || request_.schedule == LayerSchedule::kZeroBubble;
}

double LayerCosts::in_flight(std::int64_t from_end, std::int64_t stages, std::int64_t micro_batches) const {
  switch (request_.schedule) {
    case LayerSchedule::k1F1B: return static_cast<double>(std::min(from_end, micro_batches));
    case LayerSchedule::kGPipe: return static_cast<double>(micro_batches);
    case LayerSchedule::kZeroBubble: return static_cast<double>(std::min(stages, micro_batches));
    case LayerSchedule::kInterleaved: {
      const auto chunks = static_cast<std::int64_t>(chunks_);
      const std::int64_t held = 2 * (from_end - 1) + (chunks - 1) * stages + 1;
      return static_cast<double>(std::min(held, micro_batches * chunks)) / chunks_;
    }
  }
  return 0;
}

double LayerCosts::reduce_seconds(double bytes, const DeviceCounts& members) const {
  LayerLink slowest;
  double all = 0;
  for (const auto& [a, count] : members) {
    all += count;
    for (const auto& [b, ignored] : members) {
      if (a == b && count == 1) continue;
      const LayerLink& link = request_.links[a * classes() + b];
      slowest.latency = std::max(slowest.latency, link.latency);
      slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, link.seconds_per_byte);
    }
  }
  return all < 2 ? 0 : 2 * (all - 1) * slowest.seconds(bytes / all);
}

double LayerCosts::tie_seconds(const std::vector<LayerStage>& stages) const {
  double seconds = 0;
  for (const LayerTie& tie : request_.ties) {
    DeviceCounts members;
    for (const LayerStage& stage : stages) {
      if (tie.held(stage.begin, stage.end) > 0) ++members[stage.device];
    }
    seconds += reduce_seconds(tie.gradient_bytes, members);
  }
  return seconds;
}

double LayerCosts::least(const std::vector<std::int64_t>& counts, std::size_t item, const std::vector<double>& prices,
                         OfItem seconds) const {
  double best = kInfinity;
  for (std::size_t device = 0; device < classes(); ++device) {
    if (counts[device] > 0) best = std::min(best, prices[device] * (this->*seconds)(device, item));
  }
  return best;
}

// A price for a second of each class, in proportion to its speed on the whole model: for any division of the items, all
// seconds together cost at least the cheapest of each item, and at most the period (linear programming duality).
double LayerCosts::spread(const std::vector<std::int64_t>& counts, OfItem seconds) const {
  const bool recompute = request_.recompute == LayerRecompute::kAlways;
  std::vector<double> prices(classes(), 0);
  double speed = 0;
  for (std::size_t device = 0; device < classes(); ++device) {
    const double whole = compute(device, 0, items(), recompute);
    if (counts[device] == 0) continue;
    if (whole <= 0) return 0;
    prices[device] = 1 / whole;
    speed += static_cast<double>(counts[device]) / whole;
  }
  double sum = 0;
  for (std::size_t item = 0; item < items(); ++item) sum += least(counts, item, prices, seconds);
  return speed > 0 ? sum / speed : 0;
}

double LayerCosts::least_fill(const std::vector<std::int64_t>& counts) const {
  const std::vector<double> ones(classes(), 1);
  double sum = 0;
  for (std::size_t item = 0; item < items(); ++item) sum += least(counts, item, ones, &LayerCosts::first_item);
  return sum;
}

double LayerCosts::longest_item(const std::vector<std::int64_t>& counts) const {
  const std::vector<double> ones(classes(), 1);
  double longest = 0;
  for (std::size_t item = 0; item < items(); ++item)
    longest = std::max(longest, least(counts, item, ones, &LayerCosts::steady_item));
  return longest;
}

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
  pipeline.ties = costs.tie_seconds(stages);
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
