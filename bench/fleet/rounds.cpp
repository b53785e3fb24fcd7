// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/rounds.h"

#include <algorithm>

#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan::fleet {
namespace {

// Predicts each candidate of a robot as its session does.
std::vector<double> predicted(const FleetSimulator& fleet, const FleetLoad& load, std::size_t index) {
  const FleetRobot& robot = fleet.robots()[index];
  LinkCost link = robot.link;
  link.up_bytes_per_second /= 1 + load.messages;  // fair shares of the radio
  link.down_bytes_per_second /= 1 + load.messages;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < fleet.candidates(index); ++i) {
    const OperatorPlan& plan = fleet.candidate(index, i);
    seconds.push_back(simulate(*robot.graph, link, robot.power, plan.shares, plan.chunks).seconds);
    if (plan.server_busy > 0) seconds.back() += expected_wait(load);
  }
  return seconds;
}

}  // namespace

FleetLoad load_of(const FleetSimulator& fleet, const FleetRun& run, std::size_t robot) {
  FleetLoad load;
  load.turns = fleet.shared().turns;
  load.sessions = static_cast<int>(run.robots.size()) - 1;
  double turns = 0;
  for (std::size_t i = 0; i < run.robots.size(); ++i) {
    const RobotUse& use = run.robots[i];
    if (i == robot) {
      if (use.turns > 0) load.waited = use.turn_wait * use.frames / use.turns;
      continue;
    }
    load.computing += use.on_server;
    load.waiting += use.before_server;
    load.messages += use.on_radio;
    turns += use.turns;
  }
  if (turns > 0) load.turn_seconds = load.computing * run.seconds / turns;
  return load;
}

std::size_t next_plan(const RoundOptions& options, std::size_t robot, int round, std::size_t current,
                      std::span<const double> seconds, int others) {
  const auto best = static_cast<std::size_t>(std::ranges::min_element(seconds) - seconds.begin());
  Random random(options.seed + robot, round, Purpose::kChoice);
  const bool may_move = random.unit() * (others + 1) < 1;
  return may_move && seconds[best] < seconds[current] * (1 - options.gain) ? best : current;
}

FleetRounds run_rounds(const FleetSimulator& fleet, const RoundOptions& options) {
  if (options.rounds < 1) refuse("rounds is " + std::to_string(options.rounds) + ": give at least 1");
  if (!(options.gain >= 0 && options.gain < 1)) {
    refuse("the gain of a change is " + number(options.gain) + ": give a share in [0, 1)");
  }
  FleetOptions each;
  each.span = options.span;
  FleetRounds result;
  result.plan = plan_fleet("selfish", fleet, each);
  if (!(each.span.seconds > 0) && each.span.frames < 1) each.span = usual_span(fleet);
  std::vector<std::vector<double>> seconds(fleet.robots().size());
  std::vector<std::size_t> choice = result.plan.choice;
  for (int round = 0; round < options.rounds; ++round) {
    const bool is_new = result.choices.empty() || choice != result.choices.back();
    if (is_new) {
      result.plan.run = fleet.run(choice, each.span);
      result.settled = round;
      ++result.plan.simulations;
    }
    result.choices.push_back(choice);
    result.totals.push_back(value_of(result.plan.run, each));
    for (std::size_t i = 0; i < choice.size(); ++i) {
      const FleetLoad load = load_of(fleet, result.plan.run, i);
      if (is_new) seconds[i] = predicted(fleet, load, i);
      choice[i] = next_plan(options, i, round, choice[i], seconds[i], options.is_damped ? load.sessions : 0);
    }
  }
  result.plan.policy = "distributed";
  result.plan.choice = result.choices.back();
  result.plan.value = result.totals.back();
  return result;
}

}  // namespace atl::plan::fleet
