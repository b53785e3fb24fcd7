// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/plan_set.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/infer/run/profiled.h"
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
plan::PlanTable table_of(const plan::OperatorGraph& graph, const plan::LinkCost& link, const PlanSetOptions& options) {
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

std::shared_ptr<const SplitPlan> split_of(const Graph& graph, const Operators& operators, SplitDim along,
                                          const plan::OperatorGraph& lowered, const plan::OperatorPlan& plan) {
  const bool uses_server = std::any_of(plan.shares.begin(), plan.shares.end(),
                                       [](const plan::Share& share) { return !share.server.is_empty(); });
  if (!uses_server) return nullptr;
  Division division{along.input_tensor, along.dim, plan.shares, plan.chunks};
  Program program = program_of(graph, operators, division, plan::Side::kRobot);
  Guard guard(graph, operators, lowered, program);
  const bool robot_computes = std::any_of(program.steps.begin(), program.steps.end(), computes);
  return std::make_shared<const SplitPlan>(
      SplitPlan{plan, std::move(division), std::move(program), std::move(guard), robot_computes});
}

}  // namespace

double PlanSet::bound_at(double rate) const {
  const auto found = std::lower_bound(bound_rates.begin(), bound_rates.end(), rate);
  if (found == bound_rates.end()) return bounds.empty() ? 0 : std::min(bounds.back(), local_seconds);
  return bounds[static_cast<std::size_t>(found - bound_rates.begin())];
}

std::shared_ptr<const PlanSet> make_plan_set(const Graph& graph, const Profile& robot, const Profile& server,
                                             const plan::LinkCost& link, const PlanSetOptions& options) {
  ProfiledGraph profiled = profiled_graph(graph, robot, server);
  const SplitDim along = profiled.along;
  const auto set = std::make_shared<PlanSet>();
  set->operators = std::make_shared<const Operators>(std::move(profiled.operators));
  set->lowered = std::move(profiled.lowered);
  set->local_seconds = set->lowered.robot_seconds();
  if (options.policy == "auto") {
    plan::TableOptions table = options.table;
    table.search.chunks = options.operators.chunks;
    set->table = plan::make_table(set->lowered, link, options.power, table);
  } else {
    set->table = table_of(set->lowered, link, options);
    set->pinned = 1;
  }
  for (const plan::OperatorPlan& each : set->table.plans) {
    set->splits.push_back(split_of(graph, *set->operators, along, set->lowered, each));
  }
  plan::FluidBounds bounds(set->lowered);
  for (int i = 0; i < kBounds; ++i) {
    set->bound_rates.push_back(rate_of(options.table, i, kBounds));
    set->bounds.push_back(bounds.at(link_at(link, set->bound_rates.back())).seconds);
  }
  return set;
}

PlanChoice choose_plan(const PlanSet& set, std::span<const plan::RateWeight> likely, double local, double ceiling,
                       const std::vector<bool>& is_usable, double wait) {
  const double longest = std::max(local, ceiling);
  std::vector<PlanChoice> choices;
  if (!set.pinned || !is_usable.at(*set.pinned)) choices.push_back({0, local});
  for (std::size_t i = 1; i < set.splits.size(); ++i) {
    if (!set.splits[i] || !is_usable.at(i)) continue;
    double sum = 0;
    double weights = 0;
    for (const plan::RateWeight& each : likely) {
      sum += each.weight * std::min(longest, wait + set.table.seconds_at(i, each.rate));
      weights += each.weight;
    }
    if (weights > 0) choices.push_back({i, sum / weights});
  }
  if (choices.empty()) return {0, local};
  const auto quicker = [](const PlanChoice& a, const PlanChoice& b) { return a.seconds < b.seconds; };
  const double limit = std::min_element(choices.begin(), choices.end(), quicker)->seconds * (1 + set.table.margin);
  return *std::find_if(choices.begin(), choices.end(), [&](const PlanChoice& each) { return each.seconds <= limit; });
}

}  // namespace atl::infer
