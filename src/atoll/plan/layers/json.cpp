// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/json.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "atoll/json/fields.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

constexpr std::size_t kMaxClasses = 256;  // of which each pair has a link

// Returns the place of `name` among `names`.
template <class Names>
std::size_t place_of(const Names& names, const std::string& name, const std::string& what) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found != std::end(names)) return static_cast<std::size_t>(found - std::begin(names));
  refuse(what + " \"" + name + "\" is not known: give one of " + joined(names));
}

LayerOverlap overlap(Fields& fields, const std::string& key) {
  constexpr const char* kNames[] = {"exposed", "overlapped"};
  return static_cast<LayerOverlap>(place_of(kNames, fields.text(key, "exposed"), key));
}

LayerDevices read_devices(const Json& value, std::size_t place) {
  const std::string unnamed = "class " + std::to_string(place);
  Fields fields(value, unnamed);
  LayerDevices devices;
  devices.name = fields.text("name");
  devices.kind = fields.text("kind", devices.name);
  devices.island = fields.text("island", devices.name);
  devices.count = fields.integer("count", 1);
  if (fields.has("memory_bytes")) devices.memory_bytes = fields.number("memory_bytes");
  if (fields.has("ranks")) devices.ranks = fields.integers("ranks");
  fields.done();
  return devices;
}

std::vector<LayerTime> read_times(const Json& times, const std::string& kind, const std::string& name) {
  if (!times.is_object() || !times.contains(kind)) {
    refuse(name + " has no times for devices of kind " + kind + ": give [[samples, forward, backward], ...]");
  }
  std::vector<LayerTime> found;
  const Json& list = times.at(kind);
  const bool is_list =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& each) {
        return each.is_array() && (each.size() == 3 || each.size() == 4) &&
               std::all_of(each.begin(), each.end(), [](const Json& number) { return number.is_number(); });
      });
  if (!is_list) {
    refuse(name + "'s times for " + kind +
           " are not [[samples, forward seconds, backward seconds, and seconds of adding gradients or nothing], ...]");
  }
  for (const Json& each : list) {
    found.push_back({each[0].get<double>(), each[1].get<double>(), each[2].get<double>(),
                     each.size() == 4 ? each[3].get<double>() : 0});
  }
  return found;
}

void read_item(const Json& value, LayerRequest& request) {
  const std::string unnamed = "item " + std::to_string(request.items.size());
  Fields fields(value, unnamed);
  LayerItem item;
  item.name = fields.text("name");
  const std::string name = unnamed + " (" + item.name + ")";
  constexpr const char* kKinds[] = {"block", "embedding", "head", "norm", "other"};
  item.kind = static_cast<LayerKind>(place_of(kKinds, fields.text("kind", "block"), name + "'s kind"));
  const Json& times = fields.at("times");
  for (const LayerDevices& devices : request.devices) item.times.push_back(read_times(times, devices.kind, name));
  item.weight_bytes = fields.number("weight_bytes", 0);
  item.gradient_bytes = fields.number("gradient_bytes", 0);
  item.optimiser_bytes = fields.number("optimiser_bytes", 0);
  item.kept_bytes = fields.number("kept_bytes", 0);
  if (fields.has("recompute_bytes")) item.recompute_bytes = fields.number("recompute_bytes");
  item.output_bytes = fields.number("output_bytes", 0);
  const bool repeats = fields.has("count");
  const std::int64_t count = fields.integer("count", 1);
  fields.done();
  if (count < 1 || static_cast<std::uint64_t>(count) > kMaxLayerItems - request.items.size()) {
    refuse(name + " has \"count\": " + std::to_string(count) + ": give at least 1, and up to " +
           std::to_string(kMaxLayerItems) + " items in all");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    request.items.push_back(item);
    if (repeats) request.items.back().name += "." + std::to_string(i);
  }
}

LayerLink read_link_costs(Fields& fields) {
  const LayerLink link{fields.number("latency", 0), fields.number("seconds_per_byte", 0)};
  fields.done();
  return link;
}

// Pairs of classes take precedence over pairs of islands, and these over the default.
void read_links(Fields& fields, LayerRequest& request) {
  LayerLink fallback;
  if (fields.has("default_link")) {
    Fields given(fields.at("default_link"), "default_link");
    fallback = read_link_costs(given);
  }
  std::map<std::pair<std::string, std::string>, LayerLink> known;
  std::set<std::string> names;
  for (const LayerDevices& devices : request.devices) names.insert({devices.name, devices.island});
  if (fields.has("links")) {
    for (const Json& value : fields.list("links")) {
      const std::string what = "link " + std::to_string(known.size());
      Fields given(value, what);
      const Json& ends = given.list("between");
      if (ends.size() != 2 || !ends[0].is_string() || !ends[1].is_string()) {
        refuse(what + " has a \"between\" that is not two names of classes or islands");
      }
      std::pair<std::string, std::string> between{ends[0].get<std::string>(), ends[1].get<std::string>()};
      const LayerLink link = read_link_costs(given);
      for (const std::string& name : {between.first, between.second}) {
        if (names.contains(name)) continue;
        std::string message = what;
        refuse(message.append(" names \"").append(name).append("\", which is neither a class nor an island"));
      }
      if (between.second < between.first) std::swap(between.first, between.second);
      if (!known.emplace(between, link).second) {
        refuse("the link between " + between.first + " and " + between.second + " is given twice: give it once");
      }
    }
  }
  for (const LayerDevices& a : request.devices) {
    for (const LayerDevices& b : request.devices) {
      auto found = known.find(std::minmax(a.name, b.name));
      if (found == known.end()) found = known.find(std::minmax(a.island, b.island));
      request.links.push_back(found == known.end() ? fallback : found->second);
    }
  }
}

void read_ties(Fields& fields, LayerRequest& request) {
  if (!fields.has("ties")) return;
  for (const Json& value : fields.list("ties")) {
    Fields tie_fields(value, "tie " + std::to_string(request.ties.size()));
    LayerTie tie;
    for (const Json& name : tie_fields.list("items")) {
      const auto found = std::find_if(request.items.begin(), request.items.end(), [&](const LayerItem& item) {
        return name.is_string() && item.name == name.get<std::string>();
      });
      if (found == request.items.end()) refuse("a tie has the item " + name.dump() + ", which does not exist");
      tie.items.push_back(static_cast<std::size_t>(found - request.items.begin()));
    }
    tie.weight_bytes = tie_fields.number("weight_bytes", 0);
    tie.gradient_bytes = tie_fields.number("gradient_bytes", 0);
    tie.optimiser_bytes = tie_fields.number("optimiser_bytes", 0);
    tie.apart = tie_fields.boolean("apart", true);
    tie_fields.done();
    request.ties.push_back(std::move(tie));
  }
}

std::vector<std::int64_t> one_or_more(Fields& fields, const std::string& key) {
  if (fields.at(key).is_array()) return fields.integers(key);
  return {fields.integer(key)};
}

// Returns sizes at which every item is measured on every class, and that divide the batch.
std::vector<std::int64_t> measured_sizes(const LayerRequest& request) {
  std::vector<std::int64_t> sizes;
  const bool is_measured = std::ranges::all_of(request.items, [](const LayerItem& item) {
    return !item.times.empty() && std::ranges::none_of(item.times, [](const auto& times) { return times.empty(); });
  });
  if (request.items.empty() || !is_measured || request.batch < 1) return {1};  // check() reports the error
  for (const LayerTime& time : request.items.front().times.front()) {
    const auto everywhere = std::ranges::all_of(request.items, [&](const LayerItem& item) {
      return std::ranges::all_of(item.times, [&](const std::vector<LayerTime>& times) {
        return std::ranges::find(times, time.samples, &LayerTime::samples) != times.end();
      });
    });
    if (!everywhere || !(time.samples >= 1 && time.samples <= static_cast<double>(request.batch))) continue;
    const auto size = static_cast<std::int64_t>(time.samples);
    if (static_cast<double>(size) == time.samples && request.batch % size == 0) sizes.push_back(size);
  }
  if (sizes.empty()) {
    refuse("no size of micro-batches is measured for all items on all kinds and divides the batch of " +
           std::to_string(request.batch) + ": give \"micro_batch\"");
  }
  return sizes;
}

void read_step(Fields& fields, LayerRequest& request, bool has_plan) {
  request.batch = has_plan ? fields.integer("batch", 1) : fields.integer("batch");
  request.schedule = static_cast<LayerSchedule>(place_of(kScheduleNames, fields.text("schedule", "1f1b"), "schedule"));
  request.chunks = fields.integer("chunks", 2);
  request.transfers = overlap(fields, "transfers");
  request.gradients = overlap(fields, "gradients");
  constexpr const char* kRecomputes[] = {"always", "auto", "never"};
  request.recompute = static_cast<LayerRecompute>(place_of(kRecomputes, fields.text("recompute", "auto"), "recompute"));
  request.leave_out = fields.boolean("leave_out", false);
  request.margin = fields.number("margin", 0);
  request.most_placements = fields.integer("most_placements", request.most_placements);
  if (fields.has("replicas")) request.replicas = one_or_more(fields, "replicas");
  if (fields.has("micro_batch")) {
    request.micro_batches = one_or_more(fields, "micro_batch");
  } else if (!has_plan) {
    request.micro_batches = measured_sizes(request);
  }
}

LayerPlan read_plan(const Json& value, const LayerRequest& request) {
  Fields fields(value, "the plan");
  LayerPlan plan;
  plan.micro_batch = fields.integer("micro_batch");
  std::vector<std::string> classes;
  for (const LayerDevices& devices : request.devices) classes.push_back(devices.name);
  for (const Json& each : fields.list("pipelines")) {
    Fields pipeline_fields(each, "pipeline " + std::to_string(plan.pipelines.size()));
    LayerPipeline pipeline;
    pipeline.micro_batches = pipeline_fields.integer("micro_batches");
    for (const Json& stage_value : pipeline_fields.list("stages")) {
      Fields stage_fields(stage_value, "stage " + std::to_string(pipeline.stages.size()));
      const std::vector<std::int64_t> items = stage_fields.integers("items");
      if (items.size() != 2 || items[0] < 0 || items[1] < items[0])
        refuse("a stage's \"items\" must be [first, past the last]");
      pipeline.stages.push_back({static_cast<std::size_t>(items[0]), static_cast<std::size_t>(items[1]),
                                 place_of(classes, stage_fields.text("device"), "the class of devices"),
                                 stage_fields.boolean("recompute", false)});
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

LayerRequest read(const Json& root, LayerPlan* plan) {
  Fields fields(root, "the request");
  if (fields.integer("schema", 1) != 1) refuse("the request's schema is not 1, the only one supported");
  LayerRequest request;
  if (fields.list("devices").size() > kMaxClasses) {
    refuse("there are " + std::to_string(fields.list("devices").size()) +
           " classes of devices: give equal devices as one class, up to " + std::to_string(kMaxClasses));
  }
  for (const Json& value : fields.list("devices"))
    request.devices.push_back(read_devices(value, request.devices.size()));
  for (const Json& value : fields.list("items")) read_item(value, request);
  read_links(fields, request);
  read_ties(fields, request);
  read_step(fields, request, plan != nullptr);
  if (plan != nullptr) {
    *plan = read_plan(fields.at("plan"), request);
    request.micro_batches = {plan->micro_batch};
    request.replicas = {std::max<std::int64_t>(1, static_cast<std::int64_t>(plan->pipelines.size()))};
    request.leave_out = true;
    request.batch = 0;
    for (const LayerPipeline& pipeline : plan->pipelines) {
      if (pipeline.micro_batches < 1 || pipeline.micro_batches > kMaxLayerCount || plan->micro_batch < 1 ||
          plan->micro_batch > kMaxLayerCount || request.batch > kMaxLayerCount) {
        refuse("the plan's micro_batch and micro_batches must be at least 1, and not more than a step can have");
      }
      request.batch += pipeline.micro_batches * plan->micro_batch;
    }
  }
  fields.done();
  return request;
}

}  // namespace

LayerRequest layers_from_json(const std::string& text) {
  LayerRequest request = read(json::parse(text, "a request about layers"), nullptr);
  check(request);
  return request;
}

std::string plan_layers_json(const std::string& text) {
  const LayerRequest request = layers_from_json(text);
  return write_answer(request, plan_layers(request)).dump();
}

std::string price_layers_json(const std::string& text) {
  LayerPlan given;
  const LayerRequest request = read(json::parse(text, "a request about layers"), &given);
  return write_priced(request, price_layers(request, given)).dump();
}

}  // namespace atl::plan
