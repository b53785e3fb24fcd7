// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/plan/layers/layers.h"
#include "tests/plan/plan_cases.h"

namespace atl::plan::test {

inline LayerItem layer_item(const std::string& name, std::vector<std::vector<LayerTime>> times) {
  LayerItem item;
  item.name = name;
  item.times = std::move(times);
  return item;
}

inline LayerDevices layer_devices(const std::string& name, std::int64_t count, double memory = HUGE_VAL) {
  LayerDevices devices;
  devices.name = devices.kind = devices.island = name;
  devices.count = count;
  devices.memory_bytes = memory;
  return devices;
}

/// Items that take `seconds[class]` forward and as long backward, at one sample.
inline LayerRequest even_layers(std::size_t items, const std::vector<double>& seconds,
                                const std::vector<std::int64_t>& counts, std::int64_t batch) {
  LayerRequest request;
  for (std::size_t i = 0; i < items; ++i) {
    std::vector<std::vector<LayerTime>> times;
    for (const double each : seconds) times.push_back({{1, each / 2, each / 2}});
    request.items.push_back(layer_item("item" + std::to_string(i), times));
  }
  for (std::size_t c = 0; c < counts.size(); ++c) {
    request.devices.push_back(layer_devices("class" + std::to_string(c), counts[c]));
  }
  request.links.assign(counts.size() * counts.size(), {});
  request.batch = batch;
  request.micro_batches = {1};
  return request;
}

struct LayerShape {
  std::int64_t most_items = 7;
  std::int64_t most_classes = 3;
  std::int64_t most_devices = 4;
};

inline LayerTie any_tie(Dice& dice, LayerRequest& request) {
  LayerTie tie;
  const auto last = static_cast<std::int64_t>(request.items.size()) - 1;
  std::set<std::size_t> items{static_cast<std::size_t>(dice.integer(0, last))};
  const std::size_t wanted = dice.chance(0.25) && last >= 2 ? 3 : 2;
  while (items.size() < wanted) items.insert(static_cast<std::size_t>(dice.integer(0, last)));
  tie.items.assign(items.begin(), items.end());
  tie.weight_bytes = static_cast<double>(dice.integer(0, 5));
  tie.gradient_bytes = static_cast<double>(dice.integer(0, 5));
  tie.apart = dice.chance(0.8);
  for (const std::size_t item : items) {
    request.items[item].weight_bytes += tie.weight_bytes;
    request.items[item].gradient_bytes += tie.gradient_bytes;
  }
  return tie;
}

/// Everything varies; numbers are often round, so that ties occur. Bytes are whole.
inline LayerRequest any_layers(Dice& dice, const LayerShape& shape = {}) {
  LayerRequest request;
  const bool round = dice.chance(0.3);
  const auto seconds = [&] { return round ? static_cast<double>(dice.integer(0, 4)) : dice.real(0, 4); };
  const auto bytes = [&](std::int64_t most) { return static_cast<double>(dice.integer(0, most)); };
  const std::int64_t classes = dice.integer(1, shape.most_classes);
  std::int64_t left = std::max(classes, dice.integer(1, shape.most_devices));
  for (std::int64_t c = 0; c < classes; ++c) {
    const std::int64_t count = c + 1 == classes ? left : dice.integer(1, left - (classes - c - 1));
    left -= count;
    request.devices.push_back(layer_devices("class" + std::to_string(c), count));
    if (dice.chance(0.6)) request.devices.back().memory_bytes = bytes(90);
  }
  const auto width = static_cast<std::size_t>(classes);
  request.links.assign(width * width, {});
  for (std::size_t a = 0; a < width; ++a) {
    for (std::size_t b = a; b < width; ++b) {
      if (dice.chance(0.6))
        request.links[a * width + b] = request.links[b * width + a] = {seconds() / 4, seconds() / 8};
    }
  }
  const std::int64_t items = dice.integer(1, shape.most_items);
  for (std::int64_t i = 0; i < items; ++i) {
    std::vector<std::vector<LayerTime>> times;
    for (std::int64_t c = 0; c < classes; ++c) {
      times.push_back({{1, seconds(), seconds(), dice.chance(0.5) ? seconds() / 8 : 0}});
    }
    LayerItem item = layer_item("item" + std::to_string(i), times);
    item.weight_bytes = bytes(6);
    item.gradient_bytes = dice.chance(0.5) ? bytes(4) : 0;
    item.optimiser_bytes = dice.chance(0.5) ? bytes(8) : 0;
    item.kept_bytes = bytes(8);
    if (dice.chance(0.6)) item.recompute_bytes = bytes(3);
    item.output_bytes = bytes(4);
    request.items.push_back(item);
  }
  if (items >= 2 && dice.chance(0.4)) request.ties.push_back(any_tie(dice, request));
  if (items >= 4 && dice.chance(0.1)) request.ties.push_back(any_tie(dice, request));
  request.batch = dice.integer(1, 6);
  request.micro_batches = {1};
  const std::int64_t schedule = dice.integer(0, 5);
  request.schedule = schedule == 0   ? LayerSchedule::kGPipe
                     : schedule == 1 ? LayerSchedule::kZeroBubble
                     : schedule == 2 ? LayerSchedule::kInterleaved
                                     : LayerSchedule::k1F1B;
  if (dice.chance(0.3)) request.transfers = LayerOverlap::kOverlapped;
  if (dice.chance(0.3)) request.recompute = dice.chance(0.5) ? LayerRecompute::kNever : LayerRecompute::kAlways;
  request.leave_out = dice.chance(0.4);
  if (dice.chance(0.2)) request.margin = 0.25;
  return request;
}

/// In-flight micro-batches of stage k of p, by docs/plan-layers.md.
inline double plain_held(const LayerRequest& request, std::int64_t k, std::int64_t p, std::int64_t m) {
  switch (request.schedule) {
    case LayerSchedule::k1F1B: return static_cast<double>(std::min(p - k, m));
    case LayerSchedule::kGPipe: return static_cast<double>(m);
    case LayerSchedule::kZeroBubble: return static_cast<double>(std::min(p, m));
    case LayerSchedule::kInterleaved: break;
  }
  const auto v = static_cast<double>(request.chunks);
  return std::min(static_cast<double>(m),
                  (static_cast<double>(2 * (p - k - 1) + 1) + (v - 1) * static_cast<double>(p)) / v);
}

/// Returns the seconds of computing a micro-batch; infinite if the stage does not fit, or if tied items are apart that
/// must not be.
inline double plain_compute(const LayerRequest& request, const LayerStage& stage, double held) {
  double compute = 0;
  double bytes = 0;
  double recomputed = 0;
  for (std::size_t i = stage.begin; i < stage.end; ++i) {
    const LayerItem& item = request.items[i];
    const LayerTime& time = item.times[stage.device].front();
    compute += time.forward + time.backward;
    bytes += item.weight_bytes + item.gradient_bytes + item.optimiser_bytes;
    if (stage.recompute && item.recompute_bytes) {
      compute += time.forward;
      bytes += held * *item.recompute_bytes;
      recomputed = std::max(recomputed, item.kept_bytes);
    } else {
      bytes += held * item.kept_bytes;
    }
  }
  for (const LayerTie& tie : request.ties) {
    const auto here = std::count_if(tie.items.begin(), tie.items.end(),
                                    [&](std::size_t i) { return stage.begin <= i && i < stage.end; });
    if (here > 1) bytes -= static_cast<double>(here - 1) * tie.state_bytes();
    if (!tie.apart && here > 0 && here < static_cast<std::ptrdiff_t>(tie.items.size())) return HUGE_VAL;
  }
  const double cap = request.devices[stage.device].memory_bytes * (1 - request.margin);
  return bytes + recomputed > cap ? HUGE_VAL : compute;
}

inline double plain_ties(const LayerRequest& request, const std::vector<LayerStage>& stages) {
  double seconds = 0;
  for (const LayerTie& tie : request.ties) {
    std::vector<std::size_t> holders;
    for (const LayerStage& stage : stages) {
      const bool holds = std::any_of(tie.items.begin(), tie.items.end(),
                                     [&](std::size_t i) { return stage.begin <= i && i < stage.end; });
      if (holds) holders.push_back(stage.device);
    }
    LayerLink slowest;
    for (std::size_t a = 0; a < holders.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const LayerLink& link = request.links[holders[a] * request.devices.size() + holders[b]];
        slowest.latency = std::max(slowest.latency, link.latency);
        slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, link.seconds_per_byte);
      }
    }
    const auto copies = static_cast<double>(holders.size());
    seconds += 2 * (copies - 1) * (slowest.latency + slowest.seconds_per_byte * tie.gradient_bytes / copies);
  }
  return seconds;
}

/// Returns the seconds of a pipeline without other pipelines by the model of docs/plan-layers.md, item by item;
/// infinite if a stage does not fit, or if tied items are apart that must not be.
inline double plain_seconds(const LayerRequest& request, const std::vector<LayerStage>& stages, std::int64_t m) {
  const auto p = static_cast<std::int64_t>(stages.size());
  const double v = request.schedule == LayerSchedule::kInterleaved ? static_cast<double>(request.chunks) : 1;
  const bool overlaps = request.transfers == LayerOverlap::kOverlapped;
  double longest = 0;
  double sum = 0;
  for (std::int64_t k = 0; k < p; ++k) {
    const LayerStage& stage = stages[static_cast<std::size_t>(k)];
    const double compute = plain_compute(request, stage, plain_held(request, k, p, m));
    if (compute == HUGE_VAL) return HUGE_VAL;
    double way = 0;
    if (k + 1 < p) {
      const std::size_t next = stages[static_cast<std::size_t>(k) + 1].device;
      const LayerLink& link = request.links[stage.device * request.devices.size() + next];
      way = v * (link.latency + link.seconds_per_byte * request.items[stage.end - 1].output_bytes);
    }
    double further = compute;
    for (std::size_t i = stage.begin; i < stage.end; ++i) {
      further += request.items[i].times[stage.device].front().accumulate;
    }
    longest = std::max(longest, overlaps ? std::max(further, way) : further + 2 * way);
    sum += compute + 2 * way;
  }
  return (static_cast<double>(m) - 1 / v) * longest + sum / v + plain_ties(request, stages);
}

/// Calls `visit` with all stages on devices of `counts`: all cuts, orders and choices of recomputation.
inline void each_stages(const LayerRequest& request, const std::vector<std::int64_t>& counts,
                        const std::function<void(const std::vector<LayerStage>&)>& visit) {
  std::vector<LayerStage> stages;
  std::vector<std::int64_t> left = counts;
  const std::function<void(std::size_t)> choose = [&](std::size_t begin) {
    if (begin == request.items.size()) {
      if (request.leave_out || std::all_of(left.begin(), left.end(), [](auto count) { return count == 0; })) {
        visit(stages);
      }
      return;
    }
    for (std::size_t device = 0; device < left.size(); ++device) {
      if (left[device] == 0) continue;
      --left[device];
      for (std::size_t end = begin + 1; end <= request.items.size(); ++end) {
        for (const bool recompute : {false, true}) {
          if (request.recompute == (recompute ? LayerRecompute::kNever : LayerRecompute::kAlways)) continue;
          LayerStage stage;
          stage.begin = begin;
          stage.end = end;
          stage.device = device;
          stage.recompute = recompute;
          stages.push_back(stage);
          choose(end);
          stages.pop_back();
        }
      }
      ++left[device];
    }
  };
  choose(0);
}

/// Returns the fastest time by brute force; infinite if nothing fits.
inline double brute_seconds(const LayerRequest& request, const std::vector<std::int64_t>& counts, std::int64_t m) {
  double best = HUGE_VAL;
  each_stages(request, counts, [&](const auto& stages) { best = std::min(best, plain_seconds(request, stages, m)); });
  return best;
}

}  // namespace atl::plan::test
