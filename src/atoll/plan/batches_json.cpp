// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches_json.h"

#include "atoll/plan/cost_json.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

std::optional<double> amount(Fields& fields, const std::string& key, const std::string& name) {
  if (!fields.has(key)) return std::nullopt;
  const double value = fields.number(key);
  require_amount(name + "'s " + key, value);
  return value;
}

}  // namespace

Json write_rank(const Rank& rank) {
  Json value{{"name", rank.name}, {"cost", CostFields::write(rank.cost)}, {"least", rank.bounds.least}};
  if (rank.bounds.most < kUnbounded) value["most"] = rank.bounds.most;
  if (rank.bounds.quantum != 1) value["quantum"] = rank.bounds.quantum;
  if (rank.power) {
    value["busy_watts"] = rank.power->busy_watts;
    value["idle_watts"] = rank.power->idle_watts;
  }
  if (rank.metrics.ops) value["ops"] = *rank.metrics.ops;
  if (rank.metrics.memory_used) value["memory_used"] = *rank.metrics.memory_used;
  if (rank.metrics.latency) value["latency"] = *rank.metrics.latency;
  if (!rank.metrics.latencies.empty()) value["latencies"] = rank.metrics.latencies;
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
  rank.metrics.ops = amount(fields, "ops", name);
  rank.metrics.memory_used = amount(fields, "memory_used", name);
  rank.metrics.latency = amount(fields, "latency", name);
  if (fields.has("latencies")) rank.metrics.latencies = fields.numbers("latencies");
  for (const double seconds : rank.metrics.latencies) require_amount("a latency of " + name, seconds);
  fields.done();
  return rank;
}

std::vector<Rank> read_ranks(Fields& fields) {
  std::vector<Rank> ranks;
  for (const Json& value : fields.list("ranks")) ranks.push_back(read_rank(value, ranks.size()));
  return ranks;
}

std::vector<Rank> ranks_from_json(const std::string& text) {
  const Json value{{"ranks", parse_json(text, "the list of ranks")}};
  Fields fields(value, "the list of ranks");
  return read_ranks(fields);
}

std::string ranks_to_json(std::span<const Rank> ranks) {
  Json list = Json::array();
  for (const Rank& rank : ranks) list.push_back(write_rank(rank));
  return list.dump();
}

}  // namespace atl::plan
