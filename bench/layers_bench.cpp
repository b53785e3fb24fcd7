// SPDX-License-Identifier: Apache-2.0
// Stages of 128 blocks with embedding, norm and head on 16 devices of 4 classes.
//   atoll_bench --benchmark_filter=layers
// The argument is the number of micro-batches: with few, the sum of the stages counts as much as the longest one.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "atoll/plan/layers/layers.h"
#include "atoll/plan/layers/pipeline.h"
#include "atoll/plan/layers/search.h"

namespace {

using namespace atl::plan;

constexpr double kGiB = 1 << 30;

LayerRequest large(bool tied) {
  LayerRequest request;
  const double speeds[] = {1, 0.93, 0.61, 0.38};
  for (int c = 0; c < 4; ++c) {
    LayerDevices devices;
    devices.name = devices.kind = devices.island = "class" + std::to_string(c);
    devices.count = 4;
    devices.memory_bytes = (c % 2 == 0 ? 80 : 48) * kGiB;
    request.devices.push_back(devices);
  }
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) request.links.push_back(a == b ? LayerLink{1e-5, 3e-12} : LayerLink{5e-5, 8e-11});
  }
  const auto add = [&](const std::string& name, double units, double bytes) {
    LayerItem item;
    item.name = name;
    for (const double speed : speeds) item.times.push_back({{1, 0.01 * units / speed, 0.02 * units / speed}});
    item.weight_bytes = bytes;
    item.gradient_bytes = bytes;
    item.optimiser_bytes = 4 * bytes;
    item.kept_bytes = 0.6 * units * kGiB;
    if (units == 1) item.recompute_bytes = 64e6;
    item.output_bytes = 64e6;
    request.items.push_back(item);
  };
  add("embedding", 0.05, 1e9);
  for (int i = 0; i < 128; ++i) add("block" + std::to_string(i), 1, 436e6);
  add("norm", 0.01, 0);
  add("head", 2.4, 1e9);
  if (tied) request.ties.push_back({{0, 130}, 1e9, 1e9, 4e9, true});
  return request;
}

void layers_plan(benchmark::State& state, bool tied) {
  const LayerRequest request = large(tied);
  const LayerCosts costs(request, 1);
  const std::vector<std::int64_t> counts = counts_of(request);
  for (auto _ : state) {
    const auto pipeline = best_pipeline(costs, counts, state.range(0), false);
    if (!pipeline) state.SkipWithError("nothing fits");
    if (pipeline) state.counters["distance"] = pipeline->seconds / pipeline_bound(costs, counts, state.range(0));
  }
}

BENCHMARK_CAPTURE(layers_plan, untied, false)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Arg(64)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(layers_plan, tied, true)->Arg(1)->Arg(4)->Arg(16)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
