// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/plan/batches/batches_json.h"
#include "atoll/plan/batches/membership.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

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

}  // namespace

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

}  // namespace atl::plan
