// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "atoll/json/fields.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/json.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {
namespace {

using json::Fields;
using json::Json;

constexpr std::int64_t kMaxPlanCount = 1 << 16;  // of ranks, pipelines, stages
constexpr std::int64_t kMaxMicroBatches = 10'000'000;
constexpr std::size_t kMaxActions = 25'000'000;  // of all pipelines

int count_in(Fields& fields, const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
  return static_cast<int>(fields.integer(key, fallback, least, most));
}

Amounts read_amounts(const Json& value, const std::string& name) {
  Amounts amounts;
  if (value.is_number()) {
    amounts.all = value.get<double>();
    return amounts;
  }
  if (!value.is_object() || value.empty()) {
    refuse(name + " is " + value.dump().substr(0, 80) + ": give a number, or an object with a number by name");
  }
  const auto refuse_text = [&name](const std::string& key, const auto& text) {
    refuse(name + " of " + key + " is " + text.dump().substr(0, 80) + ": give a number");
  };
  for (const auto& [key, each] : value.items()) {
    if (!each.is_number()) refuse_text(key, each);
    amounts.by_name[key] = each.get<double>();
  }
  return amounts;
}

// Returns the meaning of a word; the first one if the key may be absent and is.
template <typename Value>
Value chosen(Fields& fields, const std::string& key, bool is_needed,
             const std::vector<std::pair<const char*, Value>>& words) {
  if (!is_needed && !fields.has(key)) return words.front().second;
  const std::string text = fields.text(key);
  for (const auto& [word, value] : words) {
    if (text == word) return value;
  }
  refuse(fields.what() + " has \"" + key + "\": \"" + text.substr(0, 40) + "\": give one of " +
         joined(words, [](const auto& each) { return each.first; }));
}

std::vector<int> read_integers(Fields& fields, const std::string& key) {
  std::vector<int> result;
  for (const std::int64_t value : fields.integers(key)) {
    if (value < 0 || value > kMaxPlanCount) {
      refuse(fields.what() + " has " + std::to_string(value) + " among its " + key);
    }
    result.push_back(static_cast<int>(value));
  }
  return result;
}

void read_ranks(Fields& fields, Plan& plan) {
  for (const Json& value : fields.list("ranks")) {
    const std::string name = "rank " + std::to_string(plan.ranks.size());
    Fields each(value, name);
    Rank rank;
    rank.island = each.text("island");
    rank.host = each.text("host", rank.island);
    rank.device_class = each.text("class", rank.island);
    rank.slowdown = each.number("slowdown", 1);
    if (each.has("memory_bytes")) rank.memory_bytes = each.number("memory_bytes");
    const std::string label = each.text("name", "");
    const int count = count_in(each, "count", 1, 1, kMaxPlanCount);
    each.done();
    if (plan.ranks.size() + static_cast<std::size_t>(count) > static_cast<std::size_t>(kMaxPlanCount)) {
      refuse("the plan has more than " + std::to_string(kMaxPlanCount) + " ranks, which is the maximum");
    }
    for (int i = 0; i < count; ++i) {
      rank.name = label.empty() ? rank.device_class + " " + std::to_string(plan.ranks.size()) : label;
      if (!label.empty() && count > 1) rank.name += " " + std::to_string(i);
      plan.ranks.push_back(rank);
    }
  }
}

Stage read_stage(const Json& value, const std::string& name, std::size_t index) {
  Fields fields(value, name);
  Stage stage;
  stage.name = fields.text("name", std::to_string(index));
  stage.forward = read_amounts(fields.at("forward"), name + "'s forward");
  stage.backward = read_amounts(fields.at("backward"), name + "'s backward");
  if (fields.has("weight")) stage.weight = read_amounts(fields.at("weight"), name + "'s weight");
  if (fields.has("accumulate")) stage.accumulate = read_amounts(fields.at("accumulate"), name + "'s accumulate");
  if (fields.has("optimiser")) stage.optimiser = read_amounts(fields.at("optimiser"), name + "'s optimiser");
  stage.boundary_bytes = fields.number("boundary_bytes", 0);
  stage.boundary_gradient_bytes = fields.number("boundary_gradient_bytes", stage.boundary_bytes);
  stage.gradient_bytes = fields.number("gradient_bytes", 0);
  stage.weight_bytes = fields.number("weight_bytes", 0);
  stage.activation_bytes = fields.number("activation_bytes", 0);
  fields.done();
  return stage;
}

std::vector<Stage> read_stages(Fields& fields, const std::string& name) {
  std::vector<Stage> stages;
  for (const Json& value : fields.list("stages")) {
    stages.push_back(read_stage(value, name + "stage " + std::to_string(stages.size()), stages.size()));
  }
  if (stages.empty() || stages.size() > static_cast<std::size_t>(kMaxPlanCount)) {
    refuse(name + "stages are " + std::to_string(stages.size()) + ": give 1 to " + std::to_string(kMaxPlanCount));
  }
  return stages;
}

// Empty strings are pauses in PyTorch's tables.
std::vector<std::vector<Action>> read_actions(Fields& fields, const std::string& name) {
  std::vector<std::vector<Action>> actions;
  for (const Json& row : fields.list("actions")) {
    if (!row.is_array())
      refuse(name + " has among its actions " + row.dump().substr(0, 80) + ": give a list for each rank");
    actions.emplace_back();
    for (const Json& cell : row) {
      if (cell.is_null()) continue;
      if (!cell.is_string())
        refuse(name + " has the action " + cell.dump().substr(0, 80) + ": give a string such as 0F3");
      const auto text = cell.get<std::string>();
      if (!text.empty()) actions.back().push_back(action_of(text));
    }
  }
  return actions;
}

Pipeline read_pipeline(const Json& value, Fields& whole, std::size_t index, const std::vector<Stage>& stages) {
  const std::string name = "pipeline " + std::to_string(index);
  Fields fields(value, name);
  Pipeline pipeline;
  pipeline.ranks = read_integers(fields, "ranks");
  if (pipeline.ranks.empty()) refuse(name + " has no ranks: give at least one");
  pipeline.micro_batches = count_in(fields, "micro_batches", 1, 1, kMaxMicroBatches);
  pipeline.stages = fields.has("stages") ? read_stages(fields, name + "'s ") : stages;
  if (pipeline.stages.empty()) refuse(name + " has no stages: give \"stages\", in the plan or in each pipeline");
  const Order order = order_of(whole.text("schedule", "1F1B"));
  const Shape shape{static_cast<int>(pipeline.ranks.size()), static_cast<int>(pipeline.stages.size()),
                    pipeline.micro_batches};
  if (static_cast<double>(shape.stages) * shape.micro_batches > static_cast<double>(kMaxMicroBatches)) {
    refuse(name + " has more than " + std::to_string(kMaxMicroBatches) + " forwards: use fewer micro-batches");
  }
  if (fields.has("actions")) {
    pipeline.actions = read_actions(fields, name);
  } else if (order == Order::kCustom && whole.has("actions")) {
    pipeline.actions = read_actions(whole, "the plan");
  } else {
    pipeline.actions = actions_of(order, shape, name);
  }
  fields.done();
  return pipeline;
}

void read_pipelines(Fields& fields, Plan& plan) {
  std::vector<Stage> stages;
  if (fields.has("stages")) stages = read_stages(fields, "");
  std::size_t actions = 0;
  for (const Json& value : fields.list("pipelines")) {
    plan.pipelines.push_back(read_pipeline(value, fields, plan.pipelines.size(), stages));
    for (const auto& each : plan.pipelines.back().actions) actions += each.size();
    if (actions > kMaxActions) {
      refuse("the plan has more than " + std::to_string(kMaxActions) +
             " actions, which is the maximum: use fewer micro-batches or pipelines");
    }
  }
}

Rail read_rail(const std::string& key, const Json& value) {
  const std::string name = "the rail " + key;
  Fields fields(value, name);
  Rail rail;
  rail.name = key;
  rail.each =
      chosen<Each>(fields, "each", true,
                   {{"rank", Each::kRank}, {"host", Each::kHost}, {"island", Each::kIsland}, {"job", Each::kJob}});
  rail.count = count_in(fields, "count", 1, 1, kMaxPlanCount);
  rail.out = read_amounts(fields.at("bytes_per_second"), name + "'s bytes_per_second");
  rail.in = rail.out;
  rail.is_half_duplex = chosen<bool>(fields, "duplex", false, {{"full", false}, {"half", true}});
  if (fields.has("in_bytes_per_second")) {
    if (rail.is_half_duplex) refuse(name + " is half duplex and has in_bytes_per_second: leave one of them out");
    rail.in = read_amounts(fields.at("in_bytes_per_second"), name + "'s in_bytes_per_second");
  }
  fields.done();
  return rail;
}

template <typename Named>
int index_of(const std::vector<Named>& list, const std::string& wanted, const std::string& name, const char* what) {
  const auto found = std::ranges::find(list, wanted, &Named::name);
  if (found != list.end()) return static_cast<int>(found - list.begin());
  refuse(name + " names the " + what + " \"" + wanted.substr(0, 40) + "\"; there are " +
         (list.empty() ? "none" : joined(list, &Named::name)));
}

Transport read_transport(const std::string& key, const Json& value, const Plan& plan) {
  const std::string name = "the transport " + key;
  Fields fields(value, name);
  Transport transport;
  transport.name = key;
  transport.chunk_bytes = fields.number("chunk_bytes", 0);
  transport.is_blocking = fields.boolean("blocking", false);
  for (const Json& each : fields.list("hops")) {
    const std::string which = name + "'s hop " + std::to_string(transport.hops.size());
    Fields of(each, which);
    Hop hop;
    hop.rail = index_of(plan.rails, of.text("rail"), which, "rail");
    hop.end =
        chosen<End>(of, "end", false, {{"both", End::kBoth}, {"sender", End::kSender}, {"receiver", End::kReceiver}});
    hop.latency = of.number("latency", 0);
    hop.stripes = count_in(of, "stripes", 0, 0, kMaxPlanCount);
    hop.most_bytes_per_second = of.number("most_bytes_per_second", kInfinity);
    of.done();
    transport.hops.push_back(hop);
  }
  fields.done();
  return transport;
}

LinkRule read_rule(const Json& value, const std::string& name, const Plan& plan) {
  Fields fields(value, name);
  LinkRule rule;
  rule.between = chosen<Between>(fields, "between", true,
                                 {{"host", Between::kHost}, {"island", Between::kIsland}, {"any", Between::kAny}});
  if (fields.has("islands")) {
    for (const Json& island : fields.list("islands")) {
      const auto is_known = [&](const Rank& rank) {
        return island.is_string() && rank.island == island.get<std::string>();
      };
      if (std::none_of(plan.ranks.begin(), plan.ranks.end(), is_known)) {
        refuse(name + " names the island " + island.dump().substr(0, 40) + ", which has no ranks");
      }
      rule.islands.push_back(island.get<std::string>());
    }
    if (rule.islands.size() != 2) refuse(name + " names " + std::to_string(rule.islands.size()) + " islands: give two");
  }
  const int use = chosen<int>(fields, "for", false, {{"all", 0}, {"transfers", 1}, {"reductions", 2}});
  rule.for_transfers = use != 2;
  rule.for_reductions = use != 1;
  rule.transport = index_of(plan.transports, fields.text("transport"), name, "transport");
  fields.done();
  return rule;
}

void read_links(Fields& fields, Plan& plan) {
  const auto object = [&](const char* key) -> const Json& {
    const Json& value = fields.at(key);
    if (!value.is_object())
      refuse(std::string("\"") + key + "\" is not an object with names: " + value.dump().substr(0, 80));
    return value;
  };
  if (fields.has("rails")) {
    for (const auto& [key, value] : object("rails").items()) plan.rails.push_back(read_rail(key, value));
  }
  if (fields.has("transports")) {
    for (const auto& [key, value] : object("transports").items()) {
      plan.transports.push_back(read_transport(key, value, plan));
    }
  }
  const std::string use = fields.text("use", "");
  if (!fields.has("links")) {
    if (!use.empty()) refuse("the plan has \"use\": \"" + use.substr(0, 40) + "\", but no \"links\"");
    return;
  }
  const Json* links = &fields.at("links");
  if (links->is_object()) {
    std::string known;
    for (const auto& [key, value] : links->items()) known.append(known.empty() ? "" : ", ").append(key);
    if (!links->contains(use)) {
      refuse("\"use\" is \"" + use.substr(0, 40) + "\"; the named links are " + (known.empty() ? "none" : known));
    }
    links = &links->at(use);
  } else if (!use.empty()) {
    refuse("the plan has \"use\": \"" + use.substr(0, 40) + "\", but its links are one list without a name");
  }
  if (!links->is_array()) refuse("the links are " + links->dump().substr(0, 80) + ": give a list of rules");
  for (const Json& value : *links) {
    plan.links.push_back(read_rule(value, "link rule " + std::to_string(plan.links.size()), plan));
  }
}

void read_reductions(Fields& fields, Plan& plan) {
  static const Json kNothing = Json::object();
  Fields options(fields.has("reduction") ? fields.at("reduction") : kNothing, "the reduction");
  plan.reduction.is_hierarchical = chosen<bool>(options, "algorithm", false, {{"hierarchical", true}, {"ring", false}});
  plan.reduction.buckets = count_in(options, "buckets", 1, 1, 10'000);
  plan.reduction.overlaps = options.boolean("overlaps", true);
  plan.reduction.is_pipelined = options.boolean("pipelined", false);
  plan.reduction.leads = count_in(options, "leads", 0, 0, kMaxPlanCount);
  options.done();
  if (!fields.has("reductions")) {
    plan.reductions = reductions_by_stage(plan.pipelines);
    return;
  }
  for (const Json& value : fields.list("reductions")) {
    const std::string name = "reduction " + std::to_string(plan.reductions.size());
    Fields each(value, name);
    Reduction reduction;
    reduction.name = each.text("name", std::to_string(plan.reductions.size()));
    reduction.bytes = each.number("bytes");
    for (const Json& member : each.list("members")) {
      const Json wrapping{{"member", member}};
      Fields wrapped(wrapping, name);
      const std::vector<int> pair = read_integers(wrapped, "member");
      if (pair.size() != 2) refuse(name + " has the member " + member.dump() + ": give [pipeline, stage]");
      reduction.members.push_back({pair[0], pair[1]});
    }
    each.done();
    plan.reductions.push_back(std::move(reduction));
  }
}

}  // namespace

Plan plan_of(const std::string& text) {
  const Json value = json::parse(text, "the plan");
  Fields fields(value, "the plan");
  Plan plan;
  read_ranks(fields, plan);
  read_pipelines(fields, plan);
  read_links(fields, plan);
  read_reductions(fields, plan);
  plan.clips = fields.boolean("clips", false);
  plan.steps = count_in(fields, "steps", 1, 1, 1000);
  // Allowed, but used only by readers or for answers.
  for (const char* key : {"notes", "timeline", "schedule", "actions", "stages"}) fields.has(key);
  fields.done();
  check(plan);
  return plan;
}

}  // namespace atl::plan::simulated
