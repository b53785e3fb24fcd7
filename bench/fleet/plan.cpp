// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/server_load.h"
#include "atoll/plan/text.h"

namespace atl::plan::fleet {
namespace {

using FleetChoice = std::vector<std::size_t>;

constexpr double kMinFleetGain = 1e-9;  // anything smaller is rounding

struct Use {
  double alone = 0;
  double up = 0;  // seconds on the radio; includes `down` if it is one medium
  double down = 0;
  double server = 0;
  double period = 0;
  // Expected values.
  double seconds = 0;
  double waited = 0;
  double up_taken = 0;
  double down_taken = 0;

  double per_second() const { return seconds > 0 || period > 0 ? 1 / std::max(period, seconds) : 0; }
};

Use use_of(const FleetSimulator& fleet, std::size_t robot, std::size_t chosen) {
  const LinkCost& link = fleet.robots()[robot].link;
  const OperatorPlan& plan = fleet.candidate(robot, chosen);
  Use use;
  use.alone = use.seconds = plan.seconds;
  use.up = plan.up_bytes / link.up_bytes_per_second;
  use.down = plan.down_bytes / link.down_bytes_per_second;
  if (link.is_half_duplex) use.up += std::exchange(use.down, 0);
  use.server = plan.server_busy;
  use.period = fleet.robots()[robot].period;
  use.up_taken = use.up;
  use.down_taken = use.down;
  return use;
}

// The load that `self` sees from the others.
void expect(std::vector<Use>& uses, std::size_t self, const Shared& shared) {
  ServerLoad load;
  load.turns = shared.turns;
  double up_messages = 0;  // mean numbers on the radio
  double down_messages = 0;
  double turns = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (i == self) continue;
    const Use& other = uses[i];
    up_messages += other.per_second() * other.up_taken;
    down_messages += other.per_second() * other.down_taken;
    load.computing += other.per_second() * other.server;
    load.waiting += other.per_second() * other.waited;
    if (other.server > 0) turns += other.per_second();
  }
  if (turns > 0) load.turn_seconds = load.computing / turns;
  Use& use = uses[self];
  const double up = use.up * (1 + up_messages) / shared.airtime;
  const double down = use.down * (1 + down_messages) / shared.airtime;
  const double waited = use.server > 0 ? expected_wait(load) : 0;
  // Damped by half, so that the robots do not oscillate in response to one another.
  use.up_taken = (use.up_taken + up) / 2;
  use.down_taken = (use.down_taken + down) / 2;
  use.waited = (use.waited + waited) / 2;
  use.seconds = use.alone + use.up_taken - use.up + use.down_taken - use.down + use.waited;
}

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
    const auto seconds_alone = [](const OperatorPlan& plan) {
      return plan.server_busy + plan.up_bytes + plan.down_bytes == 0 ? plan.seconds : kInfinity;
    };
    const FleetChoice best = selfish();
    FleetChoice choice = each(seconds_alone);
    for (std::size_t i = 0; i < choice.size(); ++i) {
      if (seconds_alone(fleet_.candidate(i, choice[i])) == kInfinity) choice[i] = best[i];
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
      for (const FleetChoice& start : starts) {
        simulated(improved(start, [this](const FleetChoice& choice) { return expected(choice); }));
      }
      const int limit = simulations_ + options_.simulations;
      improved(best()->first,
               [&](const FleetChoice& choice) { return simulations_ < limit ? simulated(choice) : kInfinity; });
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
    return std::ranges::min_element(values_, {}, [](const auto& each) { return each.second; });
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

  // Changes one robot at a time, to what is expected to be best first, until nothing has a smaller value.
  template <typename Value>
  FleetChoice improved(FleetChoice choice, const Value& value_of_choice) const {
    double value = value_of_choice(choice);
    for (bool is_better = true; std::exchange(is_better, false);) {
      for (std::size_t i = 0; i < choice.size(); ++i) {
        for (const FleetChoice& other : neighbours(choice, i)) {
          const double other_value = value_of_choice(other);
          if (other_value >= value * (1 - kMinFleetGain)) continue;
          choice = other;
          value = other_value;
          is_better = true;
        }
      }
    }
    return choice;
  }

  const FleetSimulator& fleet_;
  FleetOptions options_;
  std::map<FleetChoice, double> values_;
  int simulations_ = 0;
};

}  // namespace

std::vector<double> expected_seconds(const FleetSimulator& fleet, std::span<const std::size_t> choice) {
  constexpr int kSteps = 60;
  std::vector<Use> uses;
  for (std::size_t i = 0; i < choice.size(); ++i) uses.push_back(use_of(fleet, i, choice[i]));
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < uses.size(); ++i) expect(uses, i, fleet.shared());
  }
  std::vector<double> seconds;
  for (const Use& use : uses) seconds.push_back(use.seconds);
  return seconds;
}

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
  refuse("the policy \"" + policy + "\" for several robots is not known: give one of " + joined(fleet_policies()));
}

}  // namespace atl::plan::fleet
