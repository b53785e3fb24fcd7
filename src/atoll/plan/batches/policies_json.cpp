// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/policies_json.h"

#include <cstdio>

#include "atoll/plan/batches/batches_json.h"
#include "atoll/plan/batches/explain.h"
#include "atoll/plan/hash.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;

Json write_metrics(const std::vector<BalanceNetRank>& ranks, const std::vector<std::string>& names) {
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

}  // namespace

Request read_request(Fields& fields) {
  Request request;
  request.ranks = read_ranks(fields);
  request.batch = fields.integer("batch");
  request.policy = fields.text("policy", request.policy);
  request.form = fields.text("form", request.form);
  request.seed = fields.unsigned_integer("seed", 0);
  request.epoch = fields.integer("epoch", 0);
  if (fields.has("shares")) request.shares = fields.numbers("shares");
  request.probe = fields.integer("probe", 0);
  const std::int64_t rounds = fields.integer("rounds", request.rounds);
  if (rounds < 0 || rounds > 1000) refuse("rounds is " + std::to_string(rounds) + ": give 0 to 1000");
  request.rounds = static_cast<int>(rounds);
  request.slowdown = fields.number("slowdown", request.slowdown);
  return request;
}

Request Request::from_json(const std::string& text) {
  const Json value = json::parse(text, "the request");
  Fields fields(value, "the request");
  Request request = read_request(fields);
  fields.done();
  return request;
}

std::string BatchPlan::id() const {
  const Json value{{"policy", policy}, {"form", form}, {"batches", batches}};
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash_of(value.dump())));
  return digits;
}

Json write_plan(const BatchPlan& plan) {
  Json value{{"id", plan.id()},         {"policy", plan.policy},     {"names", plan.names},
             {"batches", plan.batches}, {"total", plan.total},       {"seconds", plan.seconds},
             {"step", plan.step},       {"idle", plan.idle},         {"mean_idle", plan.mean_idle},
             {"bound", plan.bound},     {"distance", plan.distance}, {"exact", plan.exact},
             {"notes", plan.notes}};
  if (!plan.form.empty()) value["form"] = plan.form;
  if (plan.joules_per_sample) value["joules_per_sample"] = *plan.joules_per_sample;
  return value;
}

std::string BatchPlan::to_json() const { return write_plan(*this).dump(); }

std::string Explanation::to_json() const {
  Json value{{"plans", Json::array()},
             {"left_out", Json::array()},
             {"balancenet-eq5", write_metrics(equation5, names)},
             {"balancenet-alg1", write_metrics(algorithm1, names)}};
  for (const BatchPlan& plan : plans) value["plans"].push_back(write_plan(plan));
  for (const auto& [policy, reason] : left_out) {
    value["left_out"].push_back({{"policy", policy}, {"reason", reason}});
  }
  return value.dump();
}

}  // namespace atl::plan
