// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/prepared_plans.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::infer {
namespace {

constexpr int kBounds = 12;
constexpr int kPinnedRates = 24;

plan::LinkCost link_at(plan::LinkCost link, double rate) {
  link.down_bytes_per_second *= rate / link.up_bytes_per_second;
  link.up_bytes_per_second = rate;
  return link;
}

double rate_of(const plan::TableOptions& options, int index, int count) {
  return options.least_rate *
         std::pow(options.most_rate / options.least_rate, static_cast<double>(index) / (count - 1));
}

// For everything on the robot, and for one plan.
plan::PlanTable table_of(const plan::OperatorGraph& graph, const plan::LinkCost& link, const PlanOptions& options) {
  plan::PlanTable table;
  table.link = link;
  table.margin = options.table.margin;
  for (int i = 0; i < kPinnedRates; ++i) table.rates.push_back(rate_of(options.table, i, kPinnedRates));
  table.plans.push_back(plan::make_plan("local", graph, link, options.power));
  table.plans.push_back(plan::make_plan(options.policy, graph, link, options.power, options.operators));
  for (const plan::OperatorPlan& each : table.plans) {
    std::vector<double>& seconds = table.seconds.emplace_back();
    for (const double rate : table.rates) {
      seconds.push_back(plan::simulate(graph, link_at(link, rate), options.power, each.shares, each.chunks).seconds);
    }
  }
  return table;
}

// None if the plan leaves nothing to the server.
std::optional<PreparedPlan> prepared_plan(const Graph& graph, const ProfiledGraph& profiled,
                                          const plan::OperatorPlan& made) {
  const bool uses_server = std::any_of(made.shares.begin(), made.shares.end(),
                                       [](const plan::Share& share) { return !share.server.is_empty(); });
  if (!uses_server) return std::nullopt;
  Plan plan{profiled.along.input_tensor, profiled.along.dim, made.shares, made.chunks};
  Program program = program_of(graph, profiled.operators, plan, plan::Side::kRobot);
  Guard guard(graph, profiled.operators, profiled.lowered, program);
  return PreparedPlan{std::move(plan), std::move(program), std::move(guard)};
}

}  // namespace

double PreparedPlans::bound_at(double rate) const {
  const auto found = std::lower_bound(bound_rates.begin(), bound_rates.end(), rate);
  if (found == bound_rates.end()) return bounds.empty() ? 0 : std::min(bounds.back(), local_seconds);
  return bounds[static_cast<std::size_t>(found - bound_rates.begin())];
}

std::shared_ptr<const PreparedPlans> prepare_plans(const Graph& graph, const Profile& robot, const Profile& server,
                                                   const plan::LinkCost& link, const PlanOptions& options) {
  const auto made = std::make_shared<PreparedPlans>();
  made->profiled = profiled_graph(graph, robot, server);
  const plan::OperatorGraph& lowered = made->profiled.lowered;
  made->local_seconds = lowered.robot_seconds();
  if (options.policy == "auto") {
    plan::TableOptions table = options.table;
    table.search.chunks = options.operators.chunks;
    made->table = plan::make_table(lowered, link, options.power, table);
  } else {
    made->table = table_of(lowered, link, options);
    made->pinned = 1;
  }
  for (const plan::OperatorPlan& each : made->table.plans) {
    made->plans.push_back(prepared_plan(graph, made->profiled, each));
  }
  plan::FluidBounds bounds(lowered);
  for (int i = 0; i < kBounds; ++i) {
    made->bound_rates.push_back(rate_of(options.table, i, kBounds));
    made->bounds.push_back(bounds.at(link_at(link, made->bound_rates.back())).seconds);
  }
  return made;
}

PlanChoice choose_plan(const PreparedPlans& prepared, std::span<const plan::RateWeight> likely, double local,
                       double ceiling, const std::vector<bool>& is_usable, double wait) {
  const double longest = std::max(local, ceiling);
  std::vector<PlanChoice> choices;
  if (!prepared.pinned || !is_usable.at(*prepared.pinned)) choices.push_back({0, local});
  for (std::size_t i = 1; i < prepared.plans.size(); ++i) {
    if (!prepared.plans[i] || !is_usable.at(i)) continue;
    double sum = 0;
    double weights = 0;
    for (const plan::RateWeight& each : likely) {
      sum += each.weight * std::min(longest, wait + prepared.table.seconds_at(i, each.rate));
      weights += each.weight;
    }
    if (weights > 0) choices.push_back({i, sum / weights});
  }
  if (choices.empty()) return {0, local};
  const auto quicker = [](const PlanChoice& a, const PlanChoice& b) { return a.seconds < b.seconds; };
  const double limit = std::min_element(choices.begin(), choices.end(), quicker)->seconds * (1 + prepared.table.margin);
  return *std::find_if(choices.begin(), choices.end(), [&](const PlanChoice& each) { return each.seconds <= limit; });
}

}  // namespace atl::infer
