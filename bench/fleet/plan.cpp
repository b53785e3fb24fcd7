// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"
#include "bench/fleet/expectation.h"

namespace atl::plan::fleet {
namespace {

using FleetChoice = std::vector<std::size_t>;

constexpr double kMinFleetGain = 1e-9;  // anything smaller is rounding

class Planner {
 public:
  Planner(const FleetSimulator& fleet, const FleetOptions& options) : fleet_(fleet), options_(options) {
    require_amount("the seconds that a joule counts as", options.joule_seconds);
    if (!(options_.span.seconds > 0) && options_.span.frames < 1) options_.span = usual_span(fleet);
  }

  FleetChoice selfish() const {
    return each([&](const OperatorPlan& plan) { return plan.seconds + options_.joule_seconds * plan.joules; });
  }

  FleetChoice local() const {
    const FleetChoice alone = selfish();
    FleetChoice choice = each([](const OperatorPlan& plan) {
      const bool is_alone = plan.server_busy + plan.up_bytes + plan.down_bytes == 0;
      return is_alone ? plan.seconds : kInfinity;
    });
    for (std::size_t i = 0; i < choice.size(); ++i) {
      const OperatorPlan& plan = fleet_.candidate(i, choice[i]);
      if (plan.server_busy + plan.up_bytes + plan.down_bytes > 0) choice[i] = alone[i];
    }
    return choice;
  }

  // The best choice simulated so far.
  FleetPlan aware() {
    const FleetChoice starts[] = {selfish(), local()};
    for (const FleetChoice& start : starts) simulated(start);
    const bool is_whole = count_of_choices() <= options_.most_choices;
    if (is_whole) {
      simulate_all();
    } else {
      for (const FleetChoice& start : starts) simulated(improved_by_expectation(start));
      limit_ = simulations_ + options_.simulations;
      improve_by_simulation(best()->first);
    }
    FleetPlan plan = plan_of("aware", best()->first);
    plan.is_optimum = is_whole;
    return plan;
  }

  FleetPlan plan_of(const std::string& policy, const FleetChoice& choice) {
    const double value = simulated(choice);
    return {policy, choice, fleet_.run(choice, options_.span), value, false, simulations_};
  }

 private:
  template <typename Cost>
  FleetChoice each(const Cost& cost) const {
    FleetChoice choice;
    for (std::size_t i = 0; i < fleet_.robots().size(); ++i) {
      std::size_t best = 0;
      for (std::size_t plan = 1; plan < fleet_.candidates(i); ++plan) {
        if (cost(fleet_.candidate(i, plan)) < cost(fleet_.candidate(i, best))) best = plan;
      }
      choice.push_back(best);
    }
    return choice;
  }

  double count_of_choices() const {
    double count = 1;
    for (std::size_t i = 0; i < fleet_.robots().size(); ++i) count *= static_cast<double>(fleet_.candidates(i));
    return count;
  }

  double simulated(const FleetChoice& choice) {
    const auto found = values_.find(choice);
    if (found != values_.end()) return found->second;
    ++simulations_;
    return values_[choice] = value_of(fleet_.run(choice, options_.span), options_);
  }

  std::map<FleetChoice, double>::const_iterator best() const {
    return std::min_element(values_.begin(), values_.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
  }

  void simulate_all() {
    FleetChoice choice(fleet_.robots().size(), 0);
    while (true) {
      simulated(choice);
      std::size_t i = 0;
      while (i < choice.size() && ++choice[i] == fleet_.candidates(i)) choice[i++] = 0;
      if (i == choice.size()) return;
    }
  }

  double expected(const FleetChoice& choice) const {
    FleetRun run;
    const std::vector<double> seconds = expected_seconds(fleet_, choice);
    for (std::size_t i = 0; i < choice.size(); ++i) {
      const OperatorPlan& plan = fleet_.candidate(i, choice[i]);
      RobotUse& use = run.robots.emplace_back();
      use.mean = seconds[i];
      use.joules = plan.joules + fleet_.robots()[i].power.idle_watts * (seconds[i] - plan.seconds);
    }
    return value_of(run, options_);
  }

  FleetChoice improved_by_expectation(FleetChoice choice) const {
    double value = expected(choice);
    for (bool is_better = true; std::exchange(is_better, false);) {
      for (std::size_t i = 0; i < choice.size(); ++i) {
        for (std::size_t plan = 0; plan < fleet_.candidates(i); ++plan) {
          FleetChoice other = choice;
          other[i] = plan;
          const double other_value = expected(other);
          if (other_value >= value * (1 - kMinFleetGain)) continue;
          choice = std::move(other);
          value = other_value;
          is_better = true;
        }
      }
    }
    return choice;
  }

  // Returns the choices that differ in one robot, in the order of their expected values.
  std::vector<FleetChoice> neighbours(const FleetChoice& choice, std::size_t robot) const {
    std::vector<std::pair<double, FleetChoice>> found;
    for (std::size_t plan = 0; plan < fleet_.candidates(robot); ++plan) {
      if (plan == choice[robot]) continue;
      FleetChoice other = choice;
      other[robot] = plan;
      const double value = expected(other);
      found.emplace_back(value, std::move(other));
    }
    std::sort(found.begin(), found.end());
    std::vector<FleetChoice> result;
    for (auto& [value, other] : found) result.push_back(std::move(other));
    return result;
  }

  void improve_by_simulation(FleetChoice choice) {
    double value = simulated(choice);
    for (bool is_better = true; std::exchange(is_better, false);) {
      for (std::size_t i = 0; i < choice.size(); ++i) {
        for (const FleetChoice& other : neighbours(choice, i)) {
          if (simulations_ >= limit_) return;
          const double other_value = simulated(other);
          if (other_value >= value * (1 - kMinFleetGain)) continue;
          choice = other;
          value = other_value;
          is_better = true;
        }
      }
    }
  }

  const FleetSimulator& fleet_;
  FleetOptions options_;
  std::map<FleetChoice, double> values_;
  int simulations_ = 0;
  int limit_ = 0;
};

}  // namespace

FleetSpan usual_span(const FleetSimulator& fleet) {
  constexpr double kFrames = 15;
  double slowest = 0;
  for (std::size_t i = 0; i < fleet.robots().size(); ++i) {
    double least = kInfinity;
    for (std::size_t plan = 0; plan < fleet.candidates(i); ++plan) {
      least = std::min(least, fleet.candidate(i, plan).seconds);
    }
    slowest = std::max({slowest, least, fleet.robots()[i].period});
  }
  return slowest > 0 ? FleetSpan{kFrames * slowest, 0} : FleetSpan{0, static_cast<int>(kFrames)};
}

double value_of(const FleetRun& run, const FleetOptions& options) {
  double total = 0;
  double worst = 0;
  for (const RobotUse& use : run.robots) {
    const double value = use.mean + options.joule_seconds * use.joules;
    total += value;
    worst = std::max(worst, value);
  }
  return options.objective == FleetOptions::Objective::kTotal ? total : worst;
}

std::vector<std::string> fleet_policies() { return {"local", "selfish", "aware"}; }

FleetPlan plan_fleet(const std::string& policy, const FleetSimulator& fleet, const FleetOptions& options) {
  Planner planner(fleet, options);
  if (policy == "aware") return planner.aware();
  if (policy == "selfish") return planner.plan_of(policy, planner.selfish());
  if (policy == "local") return planner.plan_of(policy, planner.local());
  std::string known;
  for (const std::string& name : fleet_policies()) known += (known.empty() ? "" : ", ") + name;
  refuse("the policy \"" + policy + "\" for several robots is not known: give one of " + known);
}

}  // namespace atl::plan::fleet
