// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/batches_json.h"

#include "atoll/plan/cost_json.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

std::optional<double> amount(Fields& fields, const std::string& key, const std::string& name) {
  if (!fields.has(key)) return std::nullopt;
  const double value = fields.number(key);
  require_amount(name + "'s " + key, value);
  return value;
}

}  // namespace

Json write_metrics(const Metrics& metrics) {
  Json value = Json::object();
  if (metrics.ops) value["ops"] = *metrics.ops;
  if (metrics.memory_used) value["memory_used"] = *metrics.memory_used;
  if (metrics.latency) value["latency"] = *metrics.latency;
  if (!metrics.latencies.empty()) value["latencies"] = metrics.latencies;
  return value;
}

Metrics read_metrics(Fields& fields, const std::string& name) {
  Metrics metrics;
  metrics.ops = amount(fields, "ops", name);
  metrics.memory_used = amount(fields, "memory_used", name);
  metrics.latency = amount(fields, "latency", name);
  if (fields.has("latencies")) metrics.latencies = fields.numbers("latencies");
  for (const double seconds : metrics.latencies) require_amount("a latency of " + name, seconds);
  return metrics;
}

Json write_rank(const Rank& rank) {
  Json value{{"name", rank.name}, {"cost", CostFields::write(rank.cost)}, {"least", rank.bounds.least}};
  if (rank.bounds.most < kUnbounded) value["most"] = rank.bounds.most;
  if (rank.bounds.quantum != 1) value["quantum"] = rank.bounds.quantum;
  if (rank.power) {
    value["busy_watts"] = rank.power->busy_watts;
    value["idle_watts"] = rank.power->idle_watts;
  }
  value.update(write_metrics(rank.metrics));
  return value;
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

std::vector<Rank> ranks_from_json(const std::string& text) {
  const Json value{{"ranks", json::parse(text, "the list of ranks")}};
  Fields fields(value, "the list of ranks");
  return read_ranks(fields);
}

std::string ranks_to_json(std::span<const Rank> ranks) {
  Json list = Json::array();
  for (const Rank& rank : ranks) list.push_back(write_rank(rank));
  return list.dump();
}

}  // namespace atl::plan
