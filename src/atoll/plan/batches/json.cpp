// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <cstdio>

#include "atoll/json/fields.h"
#include "atoll/plan/batches/adapter.h"
#include "atoll/plan/batches/membership.h"
#include "atoll/plan/cost_json.h"
#include "atoll/plan/hash.h"
#include "atoll/plan/text.h"

namespace atl::plan {

using json::Fields;
using json::Json;

inline void to_json(Json& value, const BatchPlan& plan) {
  value = {{"id", plan.id()},         {"policy", plan.policy},     {"names", plan.names},
           {"batches", plan.batches}, {"total", plan.total},       {"seconds", plan.seconds},
           {"step", plan.step},       {"idle", plan.idle},         {"mean_idle", plan.mean_idle},
           {"bound", plan.bound},     {"distance", plan.distance}, {"exact", plan.exact},
           {"notes", plan.notes}};
  if (!plan.form.empty()) value["form"] = plan.form;
  if (plan.joules_per_sample) value["joules_per_sample"] = *plan.joules_per_sample;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanChange, step, batches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SpeedEstimate, factor, usual, windows, risen, fallen, residuals)

namespace {

int read_count(Fields& fields, const std::string& key, int fallback) {
  return static_cast<int>(fields.integer(key, fallback, 0, INT_MAX));
}

std::optional<double> amount(Fields& fields, const std::string& key, const std::string& name) {
  if (!fields.has(key)) return std::nullopt;
  const double value = fields.number(key);
  require_amount(name + "'s " + key, value);
  return value;
}

Json write_metrics(const Metrics& metrics) {
  Json value = Json::object();
  if (metrics.ops) value["ops"] = *metrics.ops;
  if (metrics.memory_used) value["memory_used"] = *metrics.memory_used;
  if (metrics.latency) value["latency"] = *metrics.latency;
  if (!metrics.latencies.empty()) value["latencies"] = metrics.latencies;
  return value;
}

// `name` names their rank in errors.
Metrics read_metrics(Fields& fields, const std::string& name) {
  Metrics metrics;
  metrics.ops = amount(fields, "ops", name);
  metrics.memory_used = amount(fields, "memory_used", name);
  metrics.latency = amount(fields, "latency", name);
  if (fields.has("latencies")) metrics.latencies = fields.numbers("latencies");
  for (const double seconds : metrics.latencies) require_amount("a latency of " + name, seconds);
  return metrics;
}

Rank read_rank(const Json& value, std::size_t place) {
  const std::string unnamed = "rank " + std::to_string(place);
  Fields fields(value, unnamed);
  Rank rank;
  rank.name = fields.text("name", "");
  const std::string name = rank.name.empty() ? unnamed : unnamed + " (" + rank.name + ")";
  rank.cost = CostFields::read(fields.at("cost"), name + "'s cost");
  rank.bounds.least = fields.integer("least", 1);
  rank.bounds.most = fields.integer("most", kUnbounded);
  rank.bounds.quantum = fields.integer("quantum", 1);
  const auto busy = amount(fields, "busy_watts", name);
  const auto idle = amount(fields, "idle_watts", name);
  if (busy.has_value() != idle.has_value()) refuse(name + " needs both busy_watts and idle_watts, or neither");
  if (busy) rank.power = Power{*busy, *idle};
  rank.metrics = read_metrics(fields, name);
  fields.done();
  return rank;
}

std::vector<Rank> read_ranks(Fields& fields) {
  std::vector<Rank> ranks;
  for (const Json& value : fields.list("ranks")) ranks.push_back(read_rank(value, ranks.size()));
  return ranks;
}

Json write_balancenet(const std::vector<BalanceNetRank>& ranks, const std::vector<std::string>& names) {
  Json list = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    list.push_back({{"name", names[i]},
                    {"K", ranks[i].key},
                    {"MW", ranks[i].memory},
                    {"NL", ranks[i].latencies},
                    {"NCW", ranks[i].network},
                    {"query", ranks[i].query},
                    {"value", ranks[i].literal}});
  }
  return list;
}

Communication read_network(const Json& value, std::size_t ranks) {
  Fields fields(value, "the network");
  Network network;
  network.gradient_bytes = fields.number("gradient_bytes");
  for (const std::int64_t island : fields.integers("islands")) {
    if (island < 0 || island > static_cast<std::int64_t>(ranks)) {
      refuse("the network has island " + std::to_string(island) + ": number islands from 0");
    }
    network.islands.push_back(static_cast<int>(island));
  }
  network.inside_bytes_per_second = fields.numbers("inside_bytes_per_second");
  network.bridge_bytes_per_second = fields.number("bridge_bytes_per_second", 0);
  network.bridge_latency = fields.number("bridge_latency", 0);
  network.overlap = fields.number("overlap", 0);
  fields.done();
  return communication_of(std::move(network), ranks);
}

std::map<std::vector<std::size_t>, double> read_table(const Json& list, std::size_t ranks) {
  std::map<std::vector<std::size_t>, double> table;
  for (const Json& value : list) {
    Fields fields(value, "a row of the table of sets");
    std::vector<std::size_t> set;
    for (const std::int64_t rank : fields.integers("ranks")) {
      if (rank < 0 || rank >= static_cast<std::int64_t>(ranks)) {
        refuse("a row of the table of sets names rank " + std::to_string(rank) + ", but the number of ranks is " +
               std::to_string(ranks));
      }
      set.push_back(static_cast<std::size_t>(rank));
    }
    std::sort(set.begin(), set.end());
    const auto twice = std::adjacent_find(set.begin(), set.end());
    if (twice != set.end()) refuse("a row of the table of sets names rank " + std::to_string(*twice) + " twice");
    table[set] = fields.number("seconds");
    fields.done();
  }
  return table;
}

std::vector<PlanChange> read_changes(Fields& fields, const std::string& key) {
  std::vector<PlanChange> changes;
  for (const Json& value : fields.list(key)) {
    Fields change(value, "a plan of \"" + key + "\"");
    changes.push_back({change.integer("step"), change.integers("batches")});
    change.done();
  }
  return changes;
}

SpeedEstimate read_speed(const Json& value) {
  Fields fields(value, "a saved speed");
  SpeedEstimate speed;
  speed.factor = fields.number("factor");
  speed.usual = fields.number("usual");
  if (speed.factor <= 0 || speed.usual <= 0) {
    refuse("a saved speed has the factors " + number(speed.factor) + " and " + number(speed.usual) +
           ": they must be above 0");
  }
  speed.windows = read_count(fields, "windows", 0);
  speed.risen = fields.number("risen");
  speed.fallen = fields.number("fallen");
  speed.residuals = fields.numbers("residuals");
  fields.done();
  return speed;
}

}  // namespace

Request Request::from_json(const std::string& text) {
  const Json value = json::parse(text, "the request");
  Fields fields(value, "the request");
  Request request;
  request.ranks = read_ranks(fields);
  request.batch = fields.integer("batch");
  request.policy = fields.text("policy", request.policy);
  request.form = fields.text("form", request.form);
  request.seed = fields.unsigned_integer("seed", 0);
  request.epoch = fields.integer("epoch", 0);
  if (fields.has("shares")) request.shares = fields.numbers("shares");
  request.probe = fields.integer("probe", 0);
  request.rounds = static_cast<int>(fields.integer("rounds", request.rounds, 0, 1000));
  request.slowdown = fields.number("slowdown", request.slowdown);
  fields.done();
  return request;
}

std::string BatchPlan::id() const {
  const Json value{{"policy", policy}, {"form", form}, {"batches", batches}};
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash_of(value.dump())));
  return digits;
}

std::string BatchPlan::to_json() const { return Json(*this).dump(); }

std::string Explanation::to_json() const {
  Json value{{"plans", plans},
             {"left_out", Json::array()},
             {"balancenet-eq5", write_balancenet(equation5, names)},
             {"balancenet-alg1", write_balancenet(algorithm1, names)}};
  for (const auto& [policy, reason] : left_out) {
    value["left_out"].push_back({{"policy", policy}, {"reason", reason}});
  }
  return value.dump();
}

std::string Membership::to_json() const {
  Json value{{"best", best}, {"best_step", best_step}, {"exact", exact}, {"advice", advice}};
  value["all_step"] = all_step ? Json(*all_step) : Json();
  value["without"] = Json::array();
  for (const auto& step : without) value["without"].push_back(step ? Json(*step) : Json());
  return value.dump();
}

Membership membership_from_json(const std::string& text) {
  const Json value = json::parse(text, "the request");
  Fields fields(value, "the request");
  const std::vector<Rank> ranks = read_ranks(fields);
  const std::int64_t batch = fields.integer("batch");
  Communication communication = [](std::span<const std::size_t>) { return 0.0; };
  if (fields.has("network")) communication = read_network(fields.at("network"), ranks.size());
  std::vector<std::vector<std::size_t>> sets;
  if (fields.has("table")) {
    auto table = read_table(fields.list("table"), ranks.size());
    for (const auto& [set, seconds] : table) sets.push_back(set);
    communication = communication_of(std::move(table));
  }
  fields.done();
  return membership(ranks, batch, communication, std::move(sets));
}

AdapterOptions AdapterOptions::from_json(const std::string& text) {
  const Json value = json::parse(text, "the adapter's options");
  Fields fields(value, "the adapter's options");
  AdapterOptions options;
  options.gain = fields.number("gain", options.gain);
  options.windows = read_count(fields, "windows", options.windows);
  options.switch_seconds = fields.number("switch_seconds", options.switch_seconds);
  options.hysteresis = fields.boolean("hysteresis", options.hysteresis);
  options.interval = read_count(fields, "interval", options.interval);
  options.changes_per_epoch = read_count(fields, "changes_per_epoch", options.changes_per_epoch);
  if (fields.has("changes_per_epoch") && options.changes_per_epoch == 0) {
    refuse("changes_per_epoch is 0: give at least 1, or frozen to keep the first plan");
  }
  options.frozen = fields.boolean("frozen", options.frozen);
  if (fields.has("replay")) options.replay = read_changes(fields, "replay");
  fields.done();
  return options;
}

Window Window::from_json(const std::string& text) {
  const Json value = json::parse(text, "the window");
  Fields fields(value, "the window");
  Window window;
  window.step = fields.integer("step");
  window.epoch = fields.integer("epoch", 0);
  window.remaining = fields.integer("remaining", 0);
  for (const Json& rank : fields.list("ranks")) {
    const std::string name = "the observation of rank " + std::to_string(window.ranks.size());
    Fields seen(rank, name);
    Observation observation;
    observation.batch = seen.integer("batch");
    observation.seconds = seen.number("seconds", 0);
    observation.metrics = read_metrics(seen, name);
    seen.done();
    window.ranks.push_back(std::move(observation));
  }
  fields.done();
  return window;
}

std::string Decision::to_json() const {
  return Json{{"changed", changed}, {"version", version}, {"drift", drift},
              {"factors", factors}, {"gain", gain},       {"reason", reason}}
      .dump();
}

std::string Adapter::save() const {
  Json value{{"version", 1},           {"history", history_},
             {"windows", windows_},    {"epoch", epoch_},
             {"wins", wins_},          {"changes_in_epoch", changes_in_epoch_},
             {"ranks", Json::array()}, {"frozen", options_.frozen}};
  for (std::size_t i = 0; i < speeds_.size(); ++i) {
    const Rank& rank = request_.ranks[i];
    value["ranks"].push_back({{"name", rank.name}, {"speed", speeds_[i]}, {"metrics", write_metrics(rank.metrics)}});
  }
  return value.dump();
}

void Adapter::restore(const std::string& text) {
  const Json value = json::parse(text, "the saved adapter");
  Fields fields(value, "the saved adapter");
  if (const std::int64_t version = fields.integer("version"); version != 1) {
    refuse("the saved adapter has version " + std::to_string(version) + ", but this Atoll reads version 1");
  }
  const Json& ranks = fields.list("ranks");
  if (ranks.size() != speeds_.size()) {
    refuse("the saved adapter has " + counted(ranks.size(), "rank") + ", but this one has " +
           std::to_string(speeds_.size()) + ": start a new one");
  }
  Adapter restored(request_, options_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Fields fields_of_rank(ranks[i], "a rank of the saved adapter");
    Rank& rank = restored.request_.ranks[i];
    if (const std::string name = fields_of_rank.text("name"); name != rank.name) {
      refuse("rank " + std::to_string(i) + " of the saved adapter is \"" + name + "\", here it is \"" + rank.name +
             "\": start a new one");
    }
    restored.speeds_[i] = read_speed(fields_of_rank.at("speed"));
    Fields metrics(fields_of_rank.at("metrics"), "the metrics of a saved rank");
    rank.metrics = read_metrics(metrics, "a saved rank");
    metrics.done();
    fields_of_rank.done();
    if (restored.speeds_[i].windows > 0) {
      restored.current_.ranks[i].cost = rank.cost.scaled(restored.speeds_[i].factor);
    }
    restored.current_.ranks[i].metrics = rank.metrics;
  }
  restored.history_ = read_changes(fields, "history");
  if (restored.history_.empty()) refuse("the saved adapter has no plan");
  restored.windows_ = fields.integer("windows");
  restored.epoch_ = fields.integer("epoch");
  restored.wins_ = read_count(fields, "wins", 0);
  restored.changes_in_epoch_ = read_count(fields, "changes_in_epoch", 0);
  restored.options_.frozen = fields.boolean("frozen", false);
  fields.done();
  restored.plan_ = evaluate(restored.current_, restored.history_.back().batches);
  *this = std::move(restored);
}

}  // namespace atl::plan
