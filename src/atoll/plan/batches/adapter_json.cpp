// SPDX-License-Identifier: Apache-2.0
#include <climits>

#include "atoll/plan/batches/adapter.h"
#include "atoll/plan/batches/batches_json.h"
#include "atoll/plan/batches/policies_json.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

Json write_changes(const std::vector<PlanChange>& changes) {
  Json list = Json::array();
  for (const PlanChange& change : changes) list.push_back({{"step", change.step}, {"batches", change.batches}});
  return list;
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

int read_count(Fields& fields, const std::string& key, int fallback) {
  const std::int64_t value = fields.integer(key, fallback);
  if (value < 0 || value > INT_MAX) refuse("\"" + key + "\" is " + std::to_string(value) + ": give at least 0");
  return static_cast<int>(value);
}

Json write_speed(const SpeedEstimate& speed) {
  const SpeedEstimate::State state = speed.state();
  return {{"factor", state.factor}, {"usual", state.usual},   {"windows", state.windows},
          {"risen", state.risen},   {"fallen", state.fallen}, {"residuals", state.residuals}};
}

SpeedEstimate read_speed(const Json& value) {
  Fields fields(value, "a saved speed");
  SpeedEstimate::State state;
  state.factor = fields.number("factor");
  state.usual = fields.number("usual");
  if (state.factor <= 0 || state.usual <= 0) {
    refuse("a saved speed has the factors " + number(state.factor) + " and " + number(state.usual) +
           ": they must be above 0");
  }
  state.windows = read_count(fields, "windows", 0);
  state.risen = fields.number("risen");
  state.fallen = fields.number("fallen");
  state.residuals = fields.numbers("residuals");
  fields.done();
  return SpeedEstimate::of(state);
}

}  // namespace

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
  Json value{
      {"version", 1},  {"history", write_changes(history_)},    {"windows", windows_},    {"epoch", epoch_},
      {"wins", wins_}, {"changes_in_epoch", changes_in_epoch_}, {"ranks", Json::array()}, {"frozen", options_.frozen}};
  for (std::size_t i = 0; i < speeds_.size(); ++i) {
    const Rank& rank = request_.ranks[i];
    Json entry{{"name", rank.name}, {"speed", write_speed(speeds_[i])}};
    entry["metrics"] = write_metrics(rank.metrics);
    value["ranks"].push_back(std::move(entry));
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
    Fields rank(ranks[i], "a rank of the saved adapter");
    if (const std::string name = rank.text("name"); name != request_.ranks[i].name) {
      refuse("rank " + std::to_string(i) + " of the saved adapter is \"" + name + "\", here it is \"" +
             request_.ranks[i].name + "\": start a new one");
    }
    restored.speeds_[i] = read_speed(rank.at("speed"));
    Fields metrics(rank.at("metrics"), "the metrics of a saved rank");
    restored.request_.ranks[i].metrics = read_metrics(metrics, "a saved rank");
    metrics.done();
    rank.done();
    if (restored.speeds_[i].state().windows > 0) {
      restored.current_.ranks[i].cost = request_.ranks[i].cost.scaled(restored.speeds_[i].factor());
    }
    restored.current_.ranks[i].metrics = restored.request_.ranks[i].metrics;
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
