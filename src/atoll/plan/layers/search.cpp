// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "atoll/plan/batches/batches.h"
#include "atoll/plan/layers/pipeline.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr int kMaxPlacementSteps = 32;  // down in time, for one placement

// A pipeline's devices and micro-batches, and the best known pipeline for them.
struct Known {
  std::optional<LayerPipeline> pipeline;
  double above = 0;  // without one: lower bound on the seconds
};

class PlacementSearch {
 public:
  PlacementSearch(const LayerCosts& costs, const LayerRequest& request, std::int64_t micro_batches, LayerSearch& out)
      : costs_(costs), request_(request), micro_batches_(micro_batches), out_(out) {}

  void examine(const Placement& placement) {
    ++out_.proof.examined;
    // A lower bound on the gradients, which does not depend on the stages.
    const double gradients = least_gradients(placement);
    double below = best() - gradients;
    for (int step = 0; step < kMaxPlacementSteps; ++step) {
      const std::vector<std::int64_t> most = most_by_part(placement, below * (1 - kPipelineRounding));
      if (most.empty()) {
        if (step == 0) ++out_.proof.pruned;
        return;
      }
      below = std::min(take(placement, shares(placement, most)), best() - gradients);
    }
    out_.proof.search = false;
  }

 private:
  double best() const { return out_.plan ? out_.plan->seconds : kInfinity; }

  // Returns the best pipeline if it takes less than `cutoff`.
  const LayerPipeline* solve(const std::vector<std::int64_t>& counts, std::int64_t micro_batches, double cutoff) {
    const auto [place, is_new] = known_.try_emplace({counts, micro_batches});
    Known& known = place->second;
    if (is_new || (!known.pipeline && known.above < cutoff)) {
      // A second request, with a later cutoff, is solved without one.
      const double limit = is_new ? cutoff : kInfinity;
      known.pipeline = best_pipeline(costs_, counts, micro_batches, request_.leave_out, limit);
      if (!known.pipeline) known.above = limit;
    }
    return known.pipeline && known.pipeline->seconds < cutoff ? &*known.pipeline : nullptr;
  }

  // Returns the same when something is known to fit, since it does for more micro-batches; it takes hardly more than
  // `cutoff`.
  const LayerPipeline& solved(const std::vector<std::int64_t>& counts, std::int64_t micro_batches, double cutoff) {
    const LayerPipeline* pipeline = solve(counts, micro_batches, cutoff);
    if (pipeline == nullptr) pipeline = solve(counts, micro_batches, kInfinity);
    if (pipeline == nullptr) {
      throw Error(ErrorKind::kInternal, "a pipeline fits more micro-batches but not fewer: please report it");
    }
    return *pipeline;
  }

  // The pipeline with the most stages spreads its gradients over them, and no link is faster than the fastest.
  double least_gradients(const Placement& placement) const {
    if (request_.gradients == LayerOverlap::kOverlapped) return 0;
    std::int64_t replicas = 0;
    std::int64_t stages = 0;
    for (const PlacementPart& part : placement) {
      replicas += part.times;
      stages = std::max(stages, total_of(part.counts));
    }
    double bytes = 0;
    for (const LayerItem& item : request_.items) bytes += item.gradient_bytes;
    if (replicas < 2 || bytes <= 0) return 0;
    LayerLink fastest = request_.links.front();
    for (const LayerLink& link : request_.links) {
      fastest.latency = std::min(fastest.latency, link.latency);
      fastest.seconds_per_byte = std::min(fastest.seconds_per_byte, link.seconds_per_byte);
    }
    const double each = bytes / static_cast<double>(stages * replicas);
    return 2 * static_cast<double>(replicas - 1) * fastest.seconds(each);
  }

  // Returns how many micro-batches a bound allows below `cutoff`, up to all but one for each other pipeline.
  std::int64_t most_allowed(const std::vector<std::int64_t>& counts, std::int64_t others, double cutoff) const {
    const std::int64_t most = micro_batches_ - others;
    const double first = pipeline_bound(costs_, counts, 1);
    const double more = pipeline_bound(costs_, counts, 2) - first;
    if (!(first < cutoff)) return 0;
    if (more <= 0 || cutoff == kInfinity) return most;
    return static_cast<std::int64_t>(
        std::min(static_cast<double>(most), 1 + std::floor((cutoff - first) / more + 1e-6)));
  }

  // Returns for each part the most micro-batches that one of its pipelines does in less than `cutoff`; empty if these
  // are not enough together.
  std::vector<std::int64_t> most_by_part(const Placement& placement, double cutoff) {
    std::int64_t replicas = 0;
    for (const PlacementPart& part : placement) replicas += part.times;
    std::vector<std::int64_t> most;
    std::int64_t total = 0;
    for (const PlacementPart& part : placement) {
      most.push_back(most_allowed(part.counts, replicas - 1, cutoff));
      if (most.back() < 1) return {};
      total += part.times * most.back();
    }
    for (std::size_t i = 0; i < placement.size(); ++i) {
      const PlacementPart& part = placement[i];
      if (total < micro_batches_) return {};
      // With fewer than these, the maxima of the others are not enough.
      const std::int64_t others = total - part.times * most[i];
      const std::int64_t needed = std::max<std::int64_t>(1, (micro_batches_ - others + part.times - 1) / part.times);
      const std::int64_t found = most_below(part.counts, needed, most[i], cutoff);
      if (found < needed) return {};
      total -= part.times * (most[i] - found);
      most[i] = found;
    }
    return total < micro_batches_ ? std::vector<std::int64_t>{} : most;
  }

  std::int64_t most_below(const std::vector<std::int64_t>& counts, std::int64_t low, std::int64_t high, double cutoff) {
    const auto is_below = [&](std::int64_t count) { return solve(counts, count, cutoff) != nullptr; };
    return is_below(low) ? last_that(low, high, is_below) : 0;
  }

  // Returns the minimax division for pipelines of unchanged stages, none above its maximum.
  std::vector<std::int64_t> shares(const Placement& placement, const std::vector<std::int64_t>& most) {
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < placement.size(); ++i) {
      const LayerPipeline& pipeline = solved(placement[i].counts, most[i], kInfinity);
      const double fixed = pipeline.seconds - static_cast<double>(most[i]) * pipeline.period;
      Rank rank;
      rank.cost = Cost::affine(std::max(0.0, fixed), pipeline.period);
      rank.bounds = {1, most[i], 1};
      ranks.insert(ranks.end(), static_cast<std::size_t>(placement[i].times), rank);
    }
    return threshold(ranks, micro_batches_).batches;
  }

  // Returns the seconds of its longest pipeline.
  double take(const Placement& placement, const std::vector<std::int64_t>& shares) {
    std::vector<LayerPipeline> pipelines;
    for (const PlacementPart& part : placement) {
      for (std::int64_t i = 0; i < part.times; ++i) {
        const std::int64_t share = shares[pipelines.size()];
        pipelines.push_back(solved(part.counts, share, best()));
      }
    }
    LayerPlan plan = assembled(costs_, std::move(pipelines));
    double alone = 0;
    for (const LayerPipeline& pipeline : plan.pipelines) alone = std::max(alone, pipeline.seconds);
    if (plan.seconds > alone) out_.proof.search = false;
    if (plan.seconds < best()) out_.plan = std::move(plan);
    return alone;
  }

  const LayerCosts& costs_;
  const LayerRequest& request_;
  std::int64_t micro_batches_;
  LayerSearch& out_;
  std::map<std::pair<std::vector<std::int64_t>, std::int64_t>, Known> known_;
};

// Returns a lower bound for any plan at this micro-batch size with this number of pipelines.
double step_bound(const LayerCosts& costs, std::int64_t replicas) {
  const std::vector<std::int64_t> counts = counts_of(costs.request());
  const std::int64_t micro_batches = costs.request().batch / costs.micro_batch();
  const double once = 1 / costs.chunks();
  const double spread = costs.spread(counts);
  const double fill = once * costs.least_fill(counts);
  const auto all = static_cast<double>(micro_batches);
  const auto pipelines = static_cast<double>(replicas);
  const double largest = std::ceil(all / pipelines);  // share of micro-batches
  return std::max({all * costs.first_spread(counts), (all - once * pipelines) * spread + fill,
                   (largest - once) * costs.longest_item(counts) + fill});
}

// Returns the request for devices of one kind, any number of which may be used, in any number of equally large
// pipelines.
LayerRequest of_one_kind(const LayerRequest& request, const std::string& kind) {
  LayerRequest part = request;
  part.leave_out = true;
  std::int64_t devices = 0;
  for (LayerDevices& each : part.devices) {
    if (each.kind != kind) each.count = 0;
    devices += each.count;
  }
  for (std::int64_t replicas = 1; replicas <= devices; ++replicas) {
    if (devices % replicas == 0) part.replicas.push_back(replicas);
  }
  std::sort(part.replicas.begin(), part.replicas.end());
  part.replicas.erase(std::unique(part.replicas.begin(), part.replicas.end()), part.replicas.end());
  return part;
}

void compare_homogeneous(const LayerRequest& request, LayerAnswer& answer) {
  std::set<std::string> kinds;
  for (const LayerDevices& devices : request.devices) kinds.insert(devices.kind);
  if (kinds.size() < 2) return;
  for (const std::string& kind : kinds) {
    LayerSearch found;
    try {
      found = search_layers(of_one_kind(request, kind));
    } catch (const Error& error) {  // more states than StageSearch allows
      answer.notes.push_back("did not search for a plan on devices of kind " + kind + " alone: " + error.what());
    }
    if (!found.plan || (answer.homogeneous && answer.homogeneous->seconds <= found.plan->seconds)) continue;
    answer.homogeneous = std::move(found.plan);
    answer.homogeneous_kind = kind;
  }
  if (!answer.homogeneous || !answer.plan) return;
  answer.homogeneous_wins = answer.homogeneous->seconds < answer.plan->seconds * (1 - 1e-9);
  if (answer.homogeneous_wins) {
    answer.notes.push_back("the devices of kind " + answer.homogeneous_kind + " alone are " +
                           percent(1 - answer.homogeneous->seconds / answer.plan->seconds) +
                           " faster: leave the others out");
  }
}

void note_model(const LayerRequest& request, LayerAnswer& answer) {
  if (!answer.proof.search) {
    answer.notes.emplace_back(
        "the stages of each pipeline are the best for its devices and micro-batches; placements were searched "
        "in part, or without the time to reduce gradients");
  }
  if (request.schedule == LayerSchedule::kInterleaved) {
    answer.notes.emplace_back("interleaved: an estimate, with each device's items spread evenly over its chunks");
  }
  if (request.schedule == LayerSchedule::kZeroBubble) {
    answer.notes.emplace_back("zero-bubble: the time is that of 1f1b, which zero-bubble schedules do not exceed");
  }
}

}  // namespace

std::vector<std::int64_t> counts_of(const LayerRequest& request) {
  std::vector<std::int64_t> counts;
  for (const LayerDevices& devices : request.devices) counts.push_back(devices.count);
  return counts;
}

LayerChoices choices_of(const LayerRequest& request) {
  LayerChoices choices;
  const std::int64_t devices = total_of(counts_of(request));
  for (const std::int64_t size : request.micro_batches) {
    if (request.batch % size != 0) continue;
    choices.costs.emplace_back(request, size);
    for (const std::int64_t replicas : request.replicas) {
      if (replicas > devices || replicas > request.batch / size) continue;
      choices.all.push_back({choices.costs.size() - 1, replicas, step_bound(choices.costs.back(), replicas)});
    }
  }
  std::ranges::stable_sort(choices.all, {}, &LayerChoices::Choice::bound);
  return choices;
}

LayerSearch search_layers(const LayerRequest& request) {
  LayerSearch out;
  out.proof.stages = true;
  out.proof.search = true;
  const std::vector<std::int64_t> counts = counts_of(request);
  const auto most_devices = request.leave_out ? total_of(counts) : static_cast<std::int64_t>(request.items.size());
  const LayerChoices choices = choices_of(request);
  for (const LayerChoices::Choice& choice : choices.all) {
    if (out.plan && choice.bound >= out.plan->seconds) break;
    const LayerCosts& each = choices.costs[choice.costs];
    const Placements ways = placements(counts, choice.replicas, most_devices, request.most_placements);
    out.proof.search = out.proof.search && ways.complete;
    PlacementSearch search(each, request, request.batch / each.micro_batch(), out);
    for (const Placement& placement : ways.all) search.examine(placement);
  }
  return out;
}

double layer_bound(const LayerRequest& request) {
  const LayerChoices choices = choices_of(request);
  return choices.all.empty() ? kInfinity : choices.all.front().bound;
}

LayerAnswer plan_layers(const LayerRequest& request) {
  check(request);
  LayerAnswer answer;
  answer.bound = layer_bound(request);
  LayerSearch found = search_layers(request);
  answer.plan = std::move(found.plan);
  answer.proof = found.proof;
  compare_homogeneous(request, answer);
  if (answer.plan) {
    note_model(request, answer);
  } else {
    explain_infeasible(request, answer);
  }
  return answer;
}

}  // namespace atl::plan
