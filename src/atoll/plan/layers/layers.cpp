// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/layers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "atoll/plan/layers/nearest.h"
#include "atoll/plan/layers/search.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

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

double layer_bound(const LayerRequest& request) {
  const std::vector<std::int64_t> counts = counts_of(request);
  std::int64_t devices = 0;
  for (const std::int64_t count : counts) devices += count;
  double bound = kInfinity;
  for (const std::int64_t size : request.micro_batches) {
    if (request.batch % size != 0) continue;
    const LayerCosts costs(request, size);
    for (const std::int64_t replicas : request.replicas) {
      if (replicas > devices || replicas > request.batch / size) continue;
      bound = std::min(bound, step_bound(costs, replicas));
    }
  }
  return bound;
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
