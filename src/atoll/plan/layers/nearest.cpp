// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "atoll/plan/layers/pipeline.h"
#include "atoll/plan/layers/search.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr std::int64_t kFewPlacements = 20;  // searched for the missing bytes
constexpr std::size_t kFewStages = 8;        // that a sentence names

std::string gib(double bytes) {
  return bytes >= 1 << 28 ? number(bytes / (1 << 30)) + " GiB" : number(bytes / (1 << 20)) + " MiB";
}

// Does without `work` if it has more states than StageSearch allows.
template <class Work>
void unless_too_large(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
  }
}

void attempt(LayerAnswer& answer, const LayerRequest& request, const std::string& change, const std::string& text) {
  unless_too_large([&] {
    LayerSearch found = search_layers(request);
    if (found.plan) answer.nearest.push_back({change, text, 0, std::move(*found.plan)});
  });
}

void try_smaller_micro_batches(const LayerRequest& request, LayerAnswer& answer) {
  const std::int64_t least = *std::min_element(request.micro_batches.begin(), request.micro_batches.end());
  std::set<std::int64_t> sizes;
  for (std::int64_t size = 1; size * size <= request.batch; ++size) {
    if (request.batch % size != 0) continue;
    for (const std::int64_t each : {size, request.batch / size}) {
      if (each < least) sizes.insert(each);
    }
  }
  // A plan that fits with one size fits with all smaller ones, except for schedules that keep all micro-batches.
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    LayerRequest smaller = request;
    smaller.micro_batches = {*size};
    const std::size_t before = answer.nearest.size();
    attempt(answer, smaller, "micro_batch", "micro-batches of " + counted(*size, "sample"));
    if (answer.nearest.size() > before) return;
  }
}

// A search for each number of replicas would be thousands on large machines. So the number decreases in steps that
// double until one fits; then the largest that fits is searched between it and the last that did not.
void try_fewer_replicas(const LayerRequest& request, LayerAnswer& answer) {
  const std::vector<std::int64_t> counts = counts_of(request);
  const std::int64_t devices = total_of(counts);
  const auto items = static_cast<std::int64_t>(request.items.size());
  const std::int64_t fewest = request.leave_out ? 1 : (devices + items - 1) / items;
  const std::size_t place = answer.nearest.size();
  const auto fit = [&](std::int64_t replicas) {
    LayerRequest fewer = request;
    fewer.replicas = {replicas};
    const std::size_t before = answer.nearest.size();
    attempt(answer, fewer, "replicas", counted(replicas, "pipeline") + " of more devices each");
    if (answer.nearest.size() == before) return false;
    if (before > place) answer.nearest.erase(answer.nearest.end() - 2);  // fewer than these
    return true;
  };
  std::int64_t out = std::min(*std::min_element(request.replicas.begin(), request.replicas.end()), devices);
  if (out <= fewest) return;
  std::int64_t in = out - 1;
  for (std::int64_t less = 2; !fit(in); less *= 2) {
    if (in == fewest) return;
    out = in;
    in = std::max(fewest, in - less);
  }
  last_that(in, out - 1, fit);
}

// Returns whether the micro-batches can be divided so that all pipelines of the placement fit.
bool fits(const LayerCosts& costs, const LayerRequest& request, const Placement& placement, double extra) {
  std::int64_t replicas = 0;
  for (const PlacementPart& part : placement) replicas += part.times;
  const std::int64_t all = request.batch / costs.micro_batch();
  std::int64_t total = 0;
  for (const PlacementPart& part : placement) {
    const std::int64_t most = last_that<std::int64_t>(0, all - replicas + 1, [&](std::int64_t count) {
      return pipeline_fits(costs, part.counts, count, request.leave_out, extra);
    });
    if (most == 0) return false;
    total += part.times * most;
  }
  return total >= all;
}

// Returns the fewest whole bytes more on each device with which some plan fits.
double missing_bytes(const LayerRequest& request) {
  double least = HUGE_VAL;
  const std::vector<std::int64_t> counts = counts_of(request);
  const auto most_devices = request.leave_out ? total_of(counts) : static_cast<std::int64_t>(request.items.size());
  const LayerChoices choices = choices_of(request);
  for (const LayerChoices::Choice& choice : choices.all) {
    const LayerCosts& costs = choices.costs[choice.costs];
    const std::int64_t most = std::min(kFewPlacements, request.most_placements);
    const Placements ways = placements(counts, choice.replicas, most_devices, most);
    for (const Placement& placement : ways.all) {
      double out = 0;
      double in = std::min(least, 0x1p53);  // up to which doubles count single bytes
      if (!fits(costs, request, placement, in)) continue;
      while (in - out > 1) {
        const double middle = std::floor(out + (in - out) / 2);
        (fits(costs, request, placement, middle) ? in : out) = middle;
      }
      least = std::min(least, in);
    }
  }
  return least;
}

std::string stage_text(const LayerRequest& request, const LayerStage& stage) {
  const std::string items = stage.end - stage.begin == 1
                                ? request.items[stage.begin].name
                                : request.items[stage.begin].name + " to " + request.items[stage.end - 1].name;
  return items + " on " + request.devices[stage.device].name + " needs " + gib(stage.memory_bytes) + " of " +
         gib(stage.cap_bytes);
}

LayerStage tightest_of(const LayerPlan& plan) {
  const auto lack = [](const LayerStage& each) { return each.memory_bytes - each.cap_bytes; };
  LayerStage tightest = plan.pipelines.front().stages.front();
  for (const LayerPipeline& pipeline : plan.pipelines) {
    for (const LayerStage& stage : pipeline.stages) {
      if (lack(stage) > lack(tightest)) tightest = stage;
    }
  }
  return tightest;
}

// "other stages: 4 items on a, 3 items on b (recomputed)", for each pipeline; without the list if there are many.
std::string other_stages(const LayerRequest& request, const LayerPlan& plan) {
  std::size_t stages = 0;
  std::string text;
  for (const LayerPipeline& pipeline : plan.pipelines) {
    text += text.empty() ? ": " : " and ";
    for (std::size_t k = 0; k < pipeline.stages.size(); ++k) {
      const LayerStage& stage = pipeline.stages[k];
      const auto items = counted(stage.end - stage.begin, "item");
      text += (k == 0 ? "" : ", ") + items + " on " + request.devices[stage.device].name;
      if (stage.recompute) text += " (recomputed)";
    }
    stages += pipeline.stages.size();
  }
  return "other stages" + (stages <= kFewStages ? text : "");
}

std::string what_would_help(const std::vector<LayerChange>& nearest) {
  const std::string ways = joined(nearest, &LayerChange::text, "; ");
  return ways.empty() ? "; no change of memory alone helps" : "; what would help: " + ways;
}

void add_more_memory(const LayerRequest& request, LayerAnswer& answer) {
  const double missing = missing_bytes(request);
  if (missing == HUGE_VAL) return;
  LayerRequest larger = request;
  // One byte for rounding if a share of the memory stays free.
  const double more = request.margin > 0 ? missing / (1 - request.margin) + 1 : missing;
  for (LayerDevices& devices : larger.devices) devices.memory_bytes += more;
  LayerSearch found = search_layers(larger);
  if (!found.plan) return;
  for (LayerPipeline& pipeline : found.plan->pipelines) {
    for (LayerStage& stage : pipeline.stages) {
      stage.cap_bytes = request.devices[stage.device].memory_bytes * (1 - request.margin);
    }
  }
  answer.tightest = tightest_of(*found.plan);
  found.plan->fits = false;
  answer.nearest.push_back({"memory", gib(missing) + " more on each device", missing, std::move(*found.plan)});
}

}  // namespace

void explain_infeasible(const LayerRequest& request, LayerAnswer& answer) {
  if (request.recompute == LayerRecompute::kNever) {
    LayerRequest other = request;
    other.recompute = LayerRecompute::kAuto;
    attempt(answer, other, "recompute", "recomputation of activations (recompute: auto)");
  }
  if (request.schedule != LayerSchedule::k1F1B) {
    LayerRequest other = request;
    other.schedule = LayerSchedule::k1F1B;
    attempt(answer, other, "schedule", "the schedule 1f1b");
  }
  if (!request.leave_out) {
    LayerRequest other = request;
    other.leave_out = true;
    attempt(answer, other, "leave_out", "fewer devices (leave_out: true)");
  }
  try_smaller_micro_batches(request, answer);
  try_fewer_replicas(request, answer);
  unless_too_large([&] { add_more_memory(request, answer); });
  std::ranges::stable_sort(answer.nearest, {}, [](const LayerChange& each) {
    return std::pair(each.change == "memory", each.plan.seconds);
  });
  answer.reason = request.ties.empty() ? "no plan fits the devices' memories"
                                       : "no plan fits the devices' memories and keeps tied items as required";
  if (answer.tightest) answer.reason += ": " + stage_text(request, *answer.tightest) + " at best";
  answer.reason += what_would_help(answer.nearest);
}

LayerAnswer explain_given(const LayerRequest& request, const LayerPlan& plan) {
  LayerRequest other = request;
  std::int64_t used = 0;
  for (const LayerPipeline& pipeline : plan.pipelines) used += std::ssize(pipeline.stages);
  other.leave_out = used != total_of(counts_of(request));
  other.micro_batches = {plan.micro_batch};
  other.replicas = {static_cast<std::int64_t>(plan.pipelines.size())};
  LayerAnswer answer;
  attempt(answer, other, "stages", "");
  if (answer.nearest.empty()) {
    explain_infeasible(other, answer);
  } else {
    answer.nearest.front().text = other_stages(request, answer.nearest.front().plan);
  }
  answer.plan = plan;
  answer.tightest = tightest_of(plan);
  answer.reason = "the plan does not fit the devices' memories: " + stage_text(request, *answer.tightest) +
                  what_would_help(answer.nearest);
  return answer;
}

}  // namespace atl::plan
