// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/batches/policies.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "atoll/plan/numbers.h"
#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Batches = std::vector<std::int64_t>;
using Weights = std::vector<double>;

constexpr std::array<std::string_view, 9> kPolicies = {
    "equal",          "random",          "fixed",  "kaitian", "kaitian-iterative",
    "balancenet-eq5", "balancenet-alg1", "energy", "minmax"};

struct BatchDivision {
  Batches batches;
  bool exact = false;
  std::vector<std::string> notes;
};

Batches apportioned(const Request& request, const Weights& weights) {
  return apportion(weights, request.batch, bounds_of(request.ranks), names_of(request.ranks));
}

BatchDivision random(const Request& request) {
  Random numbers(request.seed, request.epoch, Purpose::kShares);
  Weights weights(request.ranks.size());
  for (double& weight : weights) weight = 1 - numbers.unit();  // never 0
  return {apportioned(request, weights), false, {}};
}

BatchDivision fixed(const Request& request) {
  if (request.shares.empty()) refuse("the policy fixed needs shares, one per rank");
  return {apportioned(request, request.shares), false, {}};
}

std::int64_t probe_of(const Request& request) {
  if (request.probe < 0) refuse("the probe batch is " + std::to_string(request.probe) + ": give at least 1");
  if (request.probe > 0) return request.probe;
  return std::max<std::int64_t>(1, request.batch / static_cast<std::int64_t>(request.ranks.size()));
}

// Returns samples per second when rank i computes batches[i]. A time of zero counts as the smallest positive one.
Weights speeds(const Request& request, const Batches& batches) {
  double fastest = HUGE_VAL;
  Weights seconds;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    seconds.push_back(request.ranks[i].cost.compute_seconds(batches[i]));
    if (seconds.back() > 0) fastest = std::min(fastest, seconds.back());
  }
  if (fastest == HUGE_VAL) fastest = 1;
  Weights result;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    result.push_back(static_cast<double>(batches[i]) / std::max(seconds[i], fastest));
  }
  return result;
}

BatchDivision kaitian(const Request& request) {
  const std::int64_t probe = probe_of(request);
  // score = t_fastest / t: with one probe for all, in proportion to the speeds.
  const Weights scores = speeds(request, Batches(request.ranks.size(), probe));
  return {apportioned(request, scores), false, {"scores measured with " + counted(probe, "sample")}};
}

BatchDivision kaitian_iterative(const Request& request) {
  if (request.rounds < 0) refuse("rounds is " + std::to_string(request.rounds) + ": give at least 0");
  BatchDivision best = kaitian(request);
  double shortest = step_seconds(request.ranks, best.batches);
  Batches batches = best.batches;
  int rounds = 0;
  for (; rounds < request.rounds; ++rounds) {
    Batches measured = batches;
    for (std::size_t i = 0; i < measured.size(); ++i) {  // an empty rank is measured with its smallest batch
      if (measured[i] == 0) measured[i] = request.ranks[i].bounds.quantum;
    }
    Batches next = apportioned(request, speeds(request, measured));
    if (next == batches) break;
    batches = std::move(next);
    const double step = step_seconds(request.ranks, batches);
    if (step >= shortest) continue;
    shortest = step;
    best.batches = batches;
  }
  best.notes.push_back("measured again " + counted(rounds, "time"));
  return best;
}

BatchDivision balancenet_by(const Request& request, BalanceNetRule rule) {
  BalanceNet result = balancenet(request.ranks, request.batch, rule);
  BatchDivision choice;
  choice.notes = std::move(result.notes);
  if (request.form == "normalised") {
    Weights shares;
    for (const BalanceNetRank& rank : result.ranks) shares.push_back(rank.query);
    const bool none = std::ranges::all_of(shares, [](double share) { return share == 0; });
    choice.batches = apportioned(request, none ? Weights(shares.size(), 1) : shares);
    return choice;
  }
  if (request.form != "literal")
    refuse("the form \"" + request.form + "\" is not known: give one of normalised, literal");
  const std::vector<std::string> names = names_of(request.ranks);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::int64_t batch = result.ranks[i].literal;
    choice.batches.push_back(batch);
    total += batch;
    if (batch <= request.ranks[i].bounds.most) continue;
    choice.notes.push_back(rank_name(i, names) + " gets " + counted(batch, "sample") + ", more than its cap of " +
                           std::to_string(request.ranks[i].bounds.most));
  }
  choice.notes.push_back("literal: the batches add up to " + std::to_string(total) + ", but the global batch is " +
                         std::to_string(request.batch));
  return choice;
}

BatchDivision energy(const Request& request) {
  if (!std::isfinite(request.slowdown) || request.slowdown < 0) {
    refuse("the slowdown is " + number(request.slowdown) + ": give a share of at least 0, such as 0.1");
  }
  const double limit = threshold(request.ranks, request.batch).seconds * (1 + request.slowdown);
  EnergySplit split = least_energy(request.ranks, request.batch, limit);
  BatchDivision choice{std::move(split.batches), split.exact, {}};
  choice.notes.push_back("steps may take " + percent(request.slowdown) + " longer than the optimum");
  if (!split.exact) choice.notes.emplace_back("not exact: too large for the exact search");
  return choice;
}

BatchDivision choose(const Request& request) {
  if (request.policy == "equal") return {apportioned(request, Weights(request.ranks.size(), 1)), false, {}};
  if (request.policy == "random") return random(request);
  if (request.policy == "fixed") return fixed(request);
  if (request.policy == "kaitian") return kaitian(request);
  if (request.policy == "kaitian-iterative") return kaitian_iterative(request);
  if (request.policy == "balancenet-eq5") return balancenet_by(request, BalanceNetRule::kEquation5);
  if (request.policy == "balancenet-alg1") return balancenet_by(request, BalanceNetRule::kAlgorithm1);
  if (request.policy == "energy") return energy(request);
  if (request.policy == "minmax") return {threshold(request.ranks, request.batch).batches, true, {}};
  refuse("the policy \"" + request.policy + "\" is not known: give one of " + joined(kPolicies));
}

void add(Explanation& explanation, Request request, std::string_view policy, const std::string& form) {
  request.policy = policy;
  request.form = form;
  try {
    explanation.plans.push_back(plan_batches(request));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    const std::string name = request.policy + (form == "literal" ? " (literal)" : "");
    explanation.left_out.emplace_back(name, error.what());
  }
}

std::vector<BalanceNetRank> balancenet_ranks(const Request& request, BalanceNetRule rule) {
  try {
    return balancenet(request.ranks, request.batch, rule).ranks;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    return {};
  }
}

}  // namespace

std::span<const std::string_view> policies() noexcept { return kPolicies; }

BatchPlan evaluate(const Request& request, std::vector<std::int64_t> batches) {
  if (batches.size() != request.ranks.size()) {
    refuse(counted(request.ranks.size(), "rank") + " have " + std::to_string(batches.size()) +
           " batches: give one for each");
  }
  BatchPlan plan;
  plan.policy = request.policy;
  if (request.policy.starts_with("balancenet")) plan.form = request.form;
  plan.names = names_of(request.ranks);
  plan.total = total_of(batches);
  bool watts = plan.total > 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    plan.seconds.push_back(request.ranks[i].cost.seconds(batches[i]));
    watts = watts && request.ranks[i].power.has_value();
  }
  plan.step = *std::max_element(plan.seconds.begin(), plan.seconds.end());
  for (const double seconds : plan.seconds) {
    plan.idle.push_back(plan.step > 0 ? 1 - seconds / plan.step : 0);
    plan.mean_idle += plan.idle.back() / static_cast<double>(batches.size());
  }
  plan.bound = threshold(request.ranks, request.batch).seconds;
  if (plan.bound > 0 && plan.total > 0) {
    plan.distance = plan.step / plan.bound;
    if (plan.total != request.batch) {
      plan.distance *= static_cast<double>(request.batch) / static_cast<double>(plan.total);
    }
  }
  if (watts) plan.joules_per_sample = step_joules(request.ranks, batches) / static_cast<double>(plan.total);
  plan.batches = std::move(batches);
  return plan;
}

BatchPlan plan_batches(const Request& request) {
  if (request.ranks.empty()) refuse("a plan has no ranks: give at least one");
  BatchDivision choice = choose(request);
  BatchPlan plan = evaluate(request, std::move(choice.batches));
  plan.exact = choice.exact;
  plan.notes = std::move(choice.notes);
  return plan;
}

Explanation explain(const Request& request) {
  Explanation explanation;
  explanation.names = names_of(request.ranks);
  threshold(request.ranks, request.batch);  // a batch that fits nowhere is an error, not nine policies left out
  for (const std::string_view policy : policies()) {
    add(explanation, request, policy, "normalised");
    if (policy.starts_with("balancenet")) add(explanation, request, policy, "literal");
  }
  explanation.equation5 = balancenet_ranks(request, BalanceNetRule::kEquation5);
  explanation.algorithm1 = balancenet_ranks(request, BalanceNetRule::kAlgorithm1);
  return explanation;
}

}  // namespace atl::plan
