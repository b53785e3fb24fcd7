// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/json/fields.h"
#include "atoll/plan/operators/envelope.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/published_profile.h"
#include "atoll/plan/text.h"
#include "bench/fleet/plan.h"
#include "bench/fleet/rounds.h"

namespace atl::plan::fleet {
namespace {

using json::Fields;
using json::Json;

struct FleetRequest {
  std::vector<FleetRobot> robots;
  std::vector<std::string> models;  // of each
  Shared shared;
  FleetOptions options;
  RoundOptions rounds;
};

// A group of robots with the same model and the same link.
void read_robots(const Json& value, const TableOptions& table, FleetRequest& request) {
  Fields fields(value, "robots");
  std::optional<std::int64_t> input_bytes;
  if (fields.has("input_bytes")) input_bytes = fields.integer("input_bytes");
  if (input_bytes && *input_bytes < 0) {
    refuse("robots have \"input_bytes\": " + std::to_string(*input_bytes) + ": give at least 0");
  }
  PublishedProfile profile = published_profile(fields.text("profile"), input_bytes);
  FleetRobot robot;
  robot.link = read_link(fields.at("link"));
  robot.period = fields.number("period", 0);
  robot.first = fields.number("first", 0);
  const std::int64_t count = fields.integer("count", 1);
  if (count < 1) refuse("robots have \"count\": " + std::to_string(count) + ": give at least 1");
  fields.done();
  robot.candidates = make_table(profile.graph, robot.link, robot.power, table).plans;
  robot.graph = std::make_shared<const OperatorGraph>(std::move(profile.graph));
  for (std::int64_t i = 0; i < count; ++i) {
    request.robots.push_back(robot);
    request.models.push_back(profile.model);
  }
}

FleetRequest read(const std::string& text) {
  const Json root = json::parse(text, "a request about several robots");
  Fields fields(root, "the request");
  FleetRequest request;
  TableOptions table;
  table.search_seconds = fields.number("search_seconds", table.search_seconds);
  require_amount("\"search_seconds\"", table.search_seconds);
  for (const Json& each : fields.list("robots")) read_robots(each, table, request);
  if (request.robots.empty()) refuse("the request has no robots: give at least one");
  request.shared.airtime = fields.number("airtime", request.shared.airtime);
  request.shared.turns = static_cast<int>(fields.integer("turns", request.shared.turns));
  request.shared.patience = fields.number("patience", request.shared.patience);
  request.options.joule_seconds = fields.number("joule_seconds", 0);
  const std::string objective = fields.text("objective", "total");
  if (objective != "total" && objective != "worst") {
    refuse("the objective \"" + objective + "\" is not known: give one of total, worst");
  }
  if (objective == "worst") request.options.objective = FleetOptions::Objective::kWorst;
  request.options.span.seconds = fields.number("seconds", 0);
  request.options.simulations = static_cast<int>(fields.integer("simulations", request.options.simulations));
  request.rounds.rounds = static_cast<int>(fields.integer("rounds", request.rounds.rounds));
  request.rounds.seed = fields.unsigned_integer("seed", 0);
  request.rounds.span = request.options.span;
  fields.done();
  return request;
}

Json written(const FleetSimulator& fleet, const FleetPlan& plan) {
  Json robots = Json::array();
  double seconds = 0;
  double joules = 0;
  for (std::size_t i = 0; i < plan.choice.size(); ++i) {
    const RobotUse& use = plan.run.robots[i];
    seconds += use.mean;
    joules += use.joules;
    robots.push_back({{"plan", plan.choice[i]},
                      {"kind", fleet.candidate(i, plan.choice[i]).policy},
                      {"frames", use.frames},
                      {"seconds", use.mean},
                      {"p95", use.p95},
                      {"joules", use.joules},
                      {"frame_wait", use.frame_wait},
                      {"radio_wait", use.radio_wait},
                      {"turn_wait", use.turn_wait}});
  }
  return {{"policy", plan.policy},
          {"seconds", seconds},
          {"joules", joules},
          {"value", plan.value},
          {"is_optimum", plan.is_optimum},
          {"simulations", plan.simulations},
          {"robots", robots}};
}

}  // namespace

std::string plan_fleet_json(const std::string& text) {
  const FleetRequest request = read(text);
  const FleetSimulator fleet(request.robots, request.shared);
  Json answer{{"bound", fleet_bound(request.robots, request.shared)}, {"policies", Json::array()}};
  for (const std::string& policy : fleet_policies()) {
    answer["policies"].push_back(written(fleet, plan_fleet(policy, fleet, request.options)));
  }
  const FleetRounds rounds = run_rounds(fleet, request.rounds);
  Json distributed = written(fleet, rounds.plan);
  distributed["settled"] = rounds.settled;
  distributed["rounds"] = rounds.totals;
  answer["policies"].push_back(std::move(distributed));
  answer["robots"] = Json::array();
  for (std::size_t i = 0; i < request.robots.size(); ++i) {
    Json plans = Json::array();
    for (std::size_t plan = 0; plan < fleet.candidates(i); ++plan) {
      const OperatorPlan& each = fleet.candidate(i, plan);
      plans.push_back({{"policy", each.policy}, {"seconds", each.seconds}, {"joules", each.joules}});
    }
    answer["robots"].push_back({{"model", request.models[i]}, {"plans", std::move(plans)}});
  }
  return answer.dump();
}

}  // namespace atl::plan::fleet
