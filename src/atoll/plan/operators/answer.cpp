// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/envelope.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/guard.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/plan/operators/published_profile.h"
#include "atoll/plan/operators/replay.h"
#include "atoll/plan/text.h"

namespace atl::plan {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FluidBound, seconds, robot, server, up, down)

namespace {

using json::Fields;
using json::Json;

struct Model {
  std::string name;
  OperatorGraph graph;
};

Model read_model(const Json& value) {
  Fields fields(value, "the model");
  Model model;
  if (fields.has("profile")) {
    std::optional<std::int64_t> input_bytes;
    if (fields.has("input_bytes")) input_bytes = fields.integer("input_bytes");
    if (input_bytes && *input_bytes < 0) {
      refuse("the model has \"input_bytes\": " + std::to_string(*input_bytes) + ": give at least 0");
    }
    PublishedProfile profile = published_profile(fields.text("profile"), input_bytes);
    model = {std::move(profile.model), std::move(profile.graph)};
  } else {
    model.name = fields.text("name", "");
    model.graph = read_operators(fields);
  }
  fields.done();
  return model;
}

RobotPower read_power(Fields& parent) {
  RobotPower power;
  if (!parent.has("power")) return power;
  Fields fields(parent.at("power"), "the power");
  for (const auto& [key, watts] :
       {std::pair("compute_watts", &power.compute_watts), std::pair("idle_watts", &power.idle_watts),
        std::pair("radio_watts", &power.radio_watts)}) {
    *watts = fields.number(key, *watts);
    require_amount(key, *watts);
  }
  fields.done();
  return power;
}

struct OperatorRequest {
  Model model;
  LinkCost link;
  RobotPower power;
  OperatorOptions options;
  bool is_whole = false;
};

OperatorOptions read_options(Fields& fields) {
  OperatorOptions options;
  options.deadline = fields.number("deadline", options.deadline);
  options.chunks = static_cast<int>(std::clamp<std::int64_t>(fields.integer("chunks", options.chunks), 0, 1 << 20));
  if (options.chunks < 1) refuse("the request has \"chunks\" below 1: give at least 1");
  options.seed = fields.unsigned_integer("seed", 0);
  options.is_literal = fields.boolean("literal", false);
  options.evaluations = fields.integer("evaluations", options.evaluations);
  options.search.seconds = fields.number("search_seconds", options.search.seconds);
  require_amount("the deadline", options.deadline);
  require_amount("the seconds of the search", options.search.seconds);
  return options;
}

Json with_gap(Json plan, double bound) {
  const double seconds = plan["seconds"];
  plan["gap"] = seconds > 0 && std::isfinite(seconds) ? Json(1 - bound / seconds) : Json();
  return plan;
}

Json plans_of(const OperatorRequest& request, const LinkCost& link, const std::vector<std::string>& policies,
              double bound, bool is_whole) {
  Json plans = Json::array();
  for (const std::string& policy : policies) {
    const OperatorPlan plan = make_plan(policy, request.model.graph, link, request.power, request.options);
    const Timeline timeline = simulate(request.model.graph, link, request.power, plan.shares, plan.chunks);
    plans.push_back(with_gap(write_operator_plan(plan, timeline, is_whole), bound));
  }
  return plans;
}

// Plans by each policy at other rates, with the ratio of both directions kept.
Json sensitivity_of(const OperatorRequest& request, const std::vector<double>& rates,
                    const std::vector<std::string>& policies) {
  Json answer = Json::array();
  FluidBounds bounds(request.model.graph);
  for (const double rate : rates) {
    const LinkCost link = request.link.at(rate);
    check(link);
    const double bound = bounds.at(link).seconds;
    answer.push_back({{"rate", rate}, {"bound", bound}, {"plans", plans_of(request, link, policies, bound, false)}});
  }
  return answer;
}

// Puts everything up to an operator on the robot, the rest on the server: [operator, seconds, up bytes, robot, link,
// server].
Json cuts_of(const OperatorRequest& request, const LinkCost& link) {
  const OperatorGraph& graph = request.model.graph;
  std::vector<Share> shares = everything_on(Side::kServer, graph);
  const std::vector<Share> local = everything_on(Side::kRobot, graph);
  Json answer = Json::array();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i] = local[i];
    const Timeline found = simulate(graph, link, request.power, shares);
    answer.push_back({i, found.seconds, found.up_bytes, found.robot_busy, found.link_busy, found.server_busy});
  }
  return answer;
}

Json written(const Spread& spread) {
  return {{"mean", spread.mean}, {"std", spread.deviation}, {"p50", spread.median},
          {"p95", spread.p95},   {"p99", spread.p99},       {"most", spread.most}};
}

Json summary_of(const std::vector<Served>& served, std::span<const OperatorPlan> plans,
                std::optional<double> deadline) {
  const auto count = static_cast<double>(served.size());
  const auto spread = [&](auto field) {
    std::vector<double> values;
    for (const Served& each : served) values.push_back(field(each));
    return spread_of(std::move(values));
  };
  const auto share = [&](auto condition) {
    return static_cast<double>(std::count_if(served.begin(), served.end(), condition)) / count;
  };
  Json value{{"inferences", served.size()},
             {"seconds", written(spread([](const Served& each) { return each.seconds; }))},
             {"joules", written(spread([](const Served& each) { return each.joules; }))},
             {"link_busy", written(spread([](const Served& each) { return each.link_busy; }))},
             {"robot_busy", spread([](const Served& each) { return each.robot_busy; }).mean},
             {"server_busy", spread([](const Served& each) { return each.server_busy; }).mean},
             {"up_bytes", spread([](const Served& each) { return each.up_bytes; }).mean},
             {"down_bytes", spread([](const Served& each) { return each.down_bytes; }).mean},
             {"local_answers", share([](const Served& each) { return each.is_local; })},
             {"guarded", share([](const Served& each) { return each.is_guarded; })},
             {"forecast_error", spread([](const Served& each) {
                                  return each.seconds > 0 ? std::abs(std::min(each.predicted, 1e9) / each.seconds - 1)
                                                          : 0.0;
                                }).median}};
  double seconds = 0;
  double joules = 0;
  for (const Served& each : served) {
    seconds += each.seconds;
    joules += each.joules;
  }
  value["watts"] = seconds > 0 ? joules / seconds : 0;
  if (deadline) {
    value["missed"] = share([&](const Served& each) { return each.seconds > *deadline * (1 + 1e-9); });
  }
  std::map<std::string, double> used;
  for (const Served& each : served) used[plans[each.plan].policy] += 1 / count;
  value["plans"] = used;
  return value;
}

Trace read_trace(Fields& fields) {
  return {fields.number("bin_seconds"), fields.numbers("up"),
          fields.has("down") ? fields.numbers("down") : std::vector<double>{}};
}

// Runs all replays of one request over one trace.
class Replays {
 public:
  Replays(const OperatorRequest& request, Fields& fields)
      : request_(request),
        trace_(read_trace(fields)),
        past_(trace_.bin_seconds(), fields.has("past") ? fields.numbers("past") : trace_.rates(Lane::kUp)) {
    options_.latency = request.link.latency;
    options_.is_half_duplex = request.link.is_half_duplex;
    options_.begin = fields.number("begin", 0);
    options_.length = fields.number("length", 0);
    options_.period = fields.number("period", 0);
    options_.is_apart = fields.boolean("apart", false);
  }

  Json run(const Json& value) {
    Fields fields(value, "a replay");
    const std::string policy = fields.text("policy");
    ReplayOptions options = options_;
    if (fields.boolean("guard", false)) {
      options.deadline = fields.number("deadline", guarded_deadline({}, request_.model.graph.robot_seconds()));
    }
    Json answer{{"policy", policy}};
    if (fields.has("forecast")) answer["forecast"] = fields.text("forecast");
    std::vector<OperatorPlan> own;
    std::span<const OperatorPlan> plans;
    Chooser choose;
    if (policy == "auto") {
      plans = table().plans;
      choose = chooser_of(fields, options.deadline);
    } else {
      const std::vector<double> rates = fields.has("rates") ? fields.numbers("rates") : std::vector<double>{};
      choose = planned(policy, rates, own);
      plans = own;
    }
    const bool is_whole = fields.boolean("each", false);
    fields.done();
    const std::vector<Served> served = replay(request_.model.graph, trace_, request_.power, plans, choose, options);
    answer.update(summary_of(served, plans, options.deadline));
    if (options.deadline) answer["deadline"] = *options.deadline;
    if (is_whole) {
      for (const Served& each : served) {
        answer["each"].push_back({each.begin, each.seconds, each.joules, each.plan, each.is_local});
      }
    }
    return answer;
  }

 private:
  const PlanTable& table() {
    if (table_) return *table_;
    TableOptions options;
    options.search = request_.options.search;
    options.search.chunks = request_.options.chunks;
    options.search_seconds = request_.options.search.seconds;
    table_ = make_table(request_.model.graph, request_.link, request_.power, options);
    return *table_;
  }

  Chooser chooser_of(Fields& fields, std::optional<double> deadline) {
    ChooserOptions options;
    options.forecast = fields.text("forecast", options.forecast);
    if (fields.has("quantile")) options.quantile = fields.number("quantile");
    options.sees_every_bin = fields.boolean("sees_every_bin", false);
    if (deadline) options.most_seconds = *deadline;
    if (options.forecast == "oracle") return choose_by_oracle(request_.model.graph, trace_, table());
    return choose_by_forecast(table(), past_, options);
  }

  // Without rates one plan, for the median of the past; otherwise one for each of them, chosen by the rate of the last
  // bin.
  Chooser planned(const std::string& policy, std::vector<double> rates, std::vector<OperatorPlan>& plans) {
    std::vector<double> predicted;
    const auto add = [&](const std::string& name, double rate) {
      const LinkCost link = request_.link.at(rate);
      plans.push_back(make_plan(name, request_.model.graph, link, request_.power, request_.options));
      predicted.push_back(plans.back().seconds);
    };
    if (rates.empty()) {
      add(policy, std::max(1.0, past_.median()));
    } else {
      if (!std::is_sorted(rates.begin(), rates.end())) refuse("the rates of a replay do not ascend: sort them");
      add("local", rates.front());
      for (const double rate : rates) add(policy, rate);
    }
    return choose_by_rate(std::move(rates), std::move(predicted));
  }

  const OperatorRequest& request_;
  Trace trace_;
  LinkPast past_;
  ReplayOptions options_;
  std::optional<PlanTable> table_;
};

std::vector<std::string> names_in(Fields& fields, const std::string& key, std::vector<std::string> fallback) {
  if (!fields.has(key)) return fallback;
  std::vector<std::string> names;
  for (const Json& each : fields.list(key)) {
    if (!each.is_string()) refuse("the request has \"" + key + "\" that are not names: " + each.dump().substr(0, 80));
    names.push_back(each.get<std::string>());
  }
  return names;
}

}  // namespace

std::string plan_operators(const std::string& text) {
  const Json root = json::parse(text, "the request");
  Fields fields(root, "the request");
  OperatorRequest request;
  request.model = read_model(fields.at("model"));
  request.link = read_link(fields.at("link"));
  request.power = read_power(fields);
  request.options = read_options(fields);
  request.is_whole = fields.boolean("whole", false);
  std::vector<std::string> all = operator_policies();
  std::erase(all, "random");
  const std::vector<std::string> policies = names_in(fields, "policies", std::move(all));
  const std::vector<double> rates = fields.has("rates") ? fields.numbers("rates") : std::vector<double>{};
  const OperatorGraph& graph = request.model.graph;
  const FluidBound bound = fluid_bound(graph, request.link);
  Json answer{{"model", request.model.name},
              {"operators", graph.operators.size()},
              {"robot_seconds", graph.robot_seconds()},
              {"server_seconds", graph.server_seconds()},
              {"guard_deadline", guarded_deadline({}, graph.robot_seconds())},
              {"bound", bound},
              {"plans", plans_of(request, request.link, policies, bound.seconds, request.is_whole)}};
  if (request.is_whole) {
    for (const Operator& each : graph.operators) answer["names"].push_back(each.name);
  }
  if (!rates.empty()) answer["sensitivity"] = sensitivity_of(request, rates, policies);
  if (fields.boolean("cuts", false)) answer["cuts"] = cuts_of(request, request.link);
  const Json none = Json::array();
  const Json& wanted = fields.has("replay") ? fields.list("replay") : none;
  if (fields.has("trace")) {
    Fields trace(fields.at("trace"), "the trace");
    Replays replays(request, trace);
    trace.done();
    answer["replay"] = Json::array();
    for (const Json& each : wanted) answer["replay"].push_back(replays.run(each));
  }
  fields.done();
  return answer.dump();
}

}  // namespace atl::plan
