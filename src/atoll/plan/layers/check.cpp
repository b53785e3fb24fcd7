// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "atoll/plan/layers/layers.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

constexpr double kMaxLayerSeconds = 1e9;
constexpr double kMaxLayerBytes = 1e15;
constexpr double kMaxMeasuredSamples = 1 << 20;
constexpr std::int64_t kMaxClassDevices = std::int64_t{1} << 20;

void require_at_most(const std::string& name, double value, double most, const std::string& unit) {
  require_amount(name, value);
  if (value > most) refuse(name + " is " + number(value) + " " + unit + ": give at most " + number(most));
}

void check_times(const std::string& name, const LayerItem& item, const LayerRequest& request) {
  if (item.times.size() != request.devices.size()) {
    refuse(name + " has times for " + std::to_string(item.times.size()) + " of " +
           std::to_string(request.devices.size()) + " classes of devices: give them for each");
  }
  for (std::size_t device = 0; device < item.times.size(); ++device) {
    const std::string times = name + "'s times on " + request.devices[device].name;
    if (item.times[device].empty()) refuse(times + " are missing: measure them, or leave the class out");
    for (const LayerTime& time : item.times[device]) {
      require_at_most(times + ": samples", time.samples, kMaxMeasuredSamples, "samples");
      if (time.samples < 1) refuse(times + ": samples are " + number(time.samples) + ": give at least 1");
      require_at_most(times + ": forward", time.forward, kMaxLayerSeconds, "seconds");
      require_at_most(times + ": backward", time.backward, kMaxLayerSeconds, "seconds");
      require_at_most(times + ": adding gradients", time.accumulate, kMaxLayerSeconds, "seconds");
    }
  }
}

void check_items(const LayerRequest& request) {
  if (request.items.empty()) refuse("the request has no items: give at least one");
  if (request.items.size() > kMaxLayerItems) {
    refuse("there are " + std::to_string(request.items.size()) + " items: join some, up to " +
           std::to_string(kMaxLayerItems));
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < request.items.size(); ++i) {
    const LayerItem& item = request.items[i];
    const std::string name = "item " + std::to_string(i) + " (" + item.name + ")";
    if (item.name.empty() || !names.insert(item.name).second) refuse(name + " needs a name that no other item has");
    check_times(name, item, request);
    require_at_most(name + "'s weight_bytes", item.weight_bytes, kMaxLayerBytes, "bytes");
    require_at_most(name + "'s gradient_bytes", item.gradient_bytes, kMaxLayerBytes, "bytes");
    require_at_most(name + "'s optimiser_bytes", item.optimiser_bytes, kMaxLayerBytes, "bytes");
    require_at_most(name + "'s kept_bytes", item.kept_bytes, kMaxLayerBytes, "bytes");
    require_at_most(name + "'s recompute_bytes", item.recompute_bytes.value_or(0), kMaxLayerBytes, "bytes");
    require_at_most(name + "'s output_bytes", item.output_bytes, kMaxLayerBytes, "bytes");
  }
}

void check_devices(const LayerRequest& request) {
  if (request.devices.empty()) refuse("the request has no devices: give at least one class");
  std::set<std::string> names;
  std::set<std::int64_t> ranks;
  for (const LayerDevices& devices : request.devices) {
    const std::string name = "the class " + devices.name;
    if (devices.name.empty() || !names.insert(devices.name).second) {
      refuse("a class of devices is named \"" + devices.name + "\": give a name that no other class has");
    }
    if (devices.count < 1 || devices.count > kMaxClassDevices) {
      refuse(name + " has " + std::to_string(devices.count) + " devices: give 1 to " +
             std::to_string(kMaxClassDevices));
    }
    if (std::isnan(devices.memory_bytes) || devices.memory_bytes < 0) {
      refuse(name + "'s memory_bytes is " + number(devices.memory_bytes) + ": give a number of at least 0");
    }
    if (devices.ranks.empty()) continue;
    if (devices.ranks.size() != static_cast<std::size_t>(devices.count)) {
      refuse(name + " has " + std::to_string(devices.ranks.size()) + " ranks for " + std::to_string(devices.count) +
             " devices: give one for each");
    }
    for (const std::int64_t rank : devices.ranks) {
      if (rank < 0 || !ranks.insert(rank).second) {
        refuse(name + " has the rank " + std::to_string(rank) + ": give each rank once, from 0");
      }
    }
  }
  if (request.links.size() != request.devices.size() * request.devices.size()) {
    refuse("there are " + std::to_string(request.links.size()) + " links: give one for each pair of classes");
  }
  for (const LayerLink& link : request.links) {
    require_at_most("a link's latency", link.latency, kMaxLayerSeconds, "seconds");
    require_at_most("a link's seconds_per_byte", link.seconds_per_byte, 1, "seconds");
  }
}

void check_ties(const LayerRequest& request) {
  for (std::size_t i = 0; i < request.ties.size(); ++i) {
    const LayerTie& tie = request.ties[i];
    const std::string name = "tie " + std::to_string(i);
    require_amount(name + "'s weight_bytes", tie.weight_bytes);
    require_amount(name + "'s gradient_bytes", tie.gradient_bytes);
    require_amount(name + "'s optimiser_bytes", tie.optimiser_bytes);
    const std::set<std::size_t> items(tie.items.begin(), tie.items.end());
    for (const std::size_t item : items) {
      if (item >= request.items.size())
        refuse(name + " has the item " + std::to_string(item) + ", which does not exist");
    }
    if (tie.items.size() < 2 || items.size() != tie.items.size()) {
      const std::string names = joined(tie.items, [&](std::size_t item) { return request.items[item].name; });
      refuse(name + " has " + (names.empty() ? "no items" : "the items " + names) +
             ": give two or more, each once; a weight of a single item needs no tie");
    }
    for (const std::size_t item : items) {
      const LayerItem& each = request.items[item];
      if (each.weight_bytes < tie.weight_bytes || each.gradient_bytes < tie.gradient_bytes ||
          each.optimiser_bytes < tie.optimiser_bytes) {
        refuse(name + " shares more bytes than its item " + each.name +
               " has: an item's bytes include the shared ones");
      }
    }
  }
}

void check_step(const LayerRequest& request) {
  const auto positive = [](const std::string& name, std::int64_t value) {
    if (value < 1 || value > kMaxLayerCount) {
      refuse(name + " is " + std::to_string(value) + ": give 1 to " + std::to_string(kMaxLayerCount));
    }
  };
  positive("the batch", request.batch);
  positive("chunks", request.chunks);
  positive("most_placements", request.most_placements);
  if (request.micro_batches.empty()) refuse("there is no micro_batch to choose from: give at least one size");
  if (request.replicas.empty()) refuse("there is no number of replicas to choose from: give at least one");
  for (const std::int64_t size : request.micro_batches) positive("a micro_batch", size);
  for (const std::int64_t count : request.replicas) positive("a number of replicas", count);
  if (!(request.margin >= 0 && request.margin < 1)) {
    refuse("margin is " + number(request.margin) + ": give a share from 0 to below 1");
  }
  std::int64_t devices = 0;
  for (const LayerDevices& each : request.devices) devices += each.count;
  const auto most = *std::max_element(request.replicas.begin(), request.replicas.end());
  const auto items = static_cast<std::int64_t>(request.items.size());
  if (!request.leave_out && devices > items * std::min(most, devices)) {
    refuse(std::to_string(devices) + " devices are more than " + counted(most, "pipeline") + " of " +
           counted(items, "item") + " can use: set leave_out, or allow more replicas");
  }
  bool is_divided = false;
  bool is_shared = false;
  for (const std::int64_t size : request.micro_batches) {
    if (request.batch % size != 0) continue;
    is_divided = true;
    for (const std::int64_t count : request.replicas) {
      is_shared = is_shared || (count <= devices && count <= request.batch / size);
    }
  }
  if (!is_divided) {
    refuse("no micro_batch divides the batch of " + std::to_string(request.batch) +
           ": give a size that does, such as 1, or another batch");
  }
  if (!is_shared) {
    refuse("no number of replicas is within the " + std::to_string(devices) +
           " devices and the micro-batches of a step: "
           "give a smaller one");
  }
}

}  // namespace

void check(const LayerRequest& request) {
  check_devices(request);
  check_items(request);
  check_ties(request);
  check_step(request);
}

}  // namespace atl::plan
