// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/guard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "atoll/infer/run/costs.h"
#include "atoll/infer/session/prepared_plans.h"
#include "atoll/plan/operators/guard.h"
#include "atoll/plan/operators/policies.h"
#include "tests/infer/infer_cases.h"
#include "tests/support/modelled_graph.h"

namespace atl::infer {
namespace {

using test::Dice;
using test::failure;

/// A graph of layers, by rows and not, with branches.
plan::OperatorGraph any_layers(Dice& dice) {
  plan::OperatorGraph graph;
  const std::int64_t rows = dice.integer(2, 12);
  const auto by_rows = [](Region region) { return region; };
  graph.operators.push_back({"input", rows, 64 * rows, {}, {}, {}});
  const int layers = static_cast<int>(dice.integer(1, 9));
  for (int i = 1; i <= layers; ++i) {
    plan::Operator layer{"layer", rows, 32 * rows, {dice.real(0, 1), dice.real(0, 1)}, {dice.real(0, 0.1), 0.01}, {}};
    const bool is_global = dice.chance(0.2);
    if (is_global) layer.rows = 1;
    const int operands = static_cast<int>(dice.integer(1, 2));
    for (int k = 0; k < operands; ++k) {
      const int producer = static_cast<int>(dice.integer(std::max(0, i - 3), i - 1));
      const bool whole = is_global || graph.operators[static_cast<std::size_t>(producer)].rows == 1;
      layer.operands.push_back({producer, whole ? std::function<Region(Region)>{} : by_rows});
    }
    graph.operators.push_back(layer);
  }
  graph.outputs = {layers};
  return graph;
}

struct GuardCase {
  Graph graph;
  Operators operators;
  plan::OperatorGraph lowered;
  Plan division;
  Program program;
};

GuardCase any_case(Dice& dice) {
  test::register_layer_rule();
  GuardCase made;
  made.graph = test::modelled_graph(any_layers(dice));
  made.operators = operators_of(made.graph, made.graph.inputs.front(), 0);
  const Profile profile = test::modelled_profile(made.graph, test::Machine::kRobot);
  NodeCosts costs;
  for (const Operators::Operator& each : made.operators.operators) {
    if (each.node < 0) continue;
    const auto node = static_cast<std::size_t>(each.node);
    costs.push_back({profile.fixed[node], profile.per_row[node] * static_cast<double>(each.rows)});
  }
  made.lowered = operator_graph(made.graph, made.operators, costs, {});
  plan::OperatorOptions options;
  options.seed = static_cast<std::uint64_t>(dice.integer(0, 1'000'000));
  const plan::OperatorPlan plan = plan::make_plan("random", made.lowered, {1e3, 1e3, 0.01, false}, {}, options);
  made.division = {made.graph.inputs.front(), 0, plan.shares, plan.chunks};
  made.program = program_of(made.graph, made.operators, made.division, plan::Side::kRobot);
  return made;
}

// The time of rest_of's steps at the same costs.
double seconds_of(const GuardCase& at, const Program& program) {
  double seconds = 0;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::kCompute) continue;
    for (std::size_t i = 0; i < at.operators.operators.size(); ++i) {
      if (at.operators.operators[i].node == step.index)
        seconds += at.lowered.operators[i].robot.seconds(step.rows.size());
    }
  }
  return seconds;
}

// The rows that are held after each step, by brute force.
std::vector<std::vector<std::vector<Region>>> all_held(const GuardCase& at) {
  std::vector<std::vector<Region>> held(at.graph.tensors.size());
  for (const int input : at.graph.inputs)
    held[static_cast<std::size_t>(input)] = {rows_of(at.graph, at.operators, input)};
  std::vector<std::vector<std::vector<Region>>> all{held};
  for (const Step& step : at.program.steps) {
    const auto keep = [&](int tensor) {
      auto& rows = held[static_cast<std::size_t>(tensor)];
      rows.push_back(step.rows);
      std::sort(rows.begin(), rows.end(), [](Region a, Region b) { return a.begin < b.begin; });
    };
    if (step.kind == Step::Kind::kReceive) keep(step.index);
    if (step.kind == Step::Kind::kCompute) keep(at.graph.nodes[static_cast<std::size_t>(step.index)].outputs.front());
    if (step.kind == Step::Kind::kFree) held[static_cast<std::size_t>(step.index)].clear();
    all.push_back(held);
  }
  return all;
}

TEST(Guard, KnowsWhatRestOfComputes) {
  Dice dice(21);
  for (int trial = 0; trial < 300; ++trial) {
    const GuardCase at = any_case(dice);
    const Guard guard(at.graph, at.operators, at.lowered, at.program);
    const auto held = all_held(at);
    for (std::size_t i = 0; i < at.program.steps.size(); ++i) {
      const double rest = seconds_of(at, rest_of(at.graph, at.operators, held[i]));
      if (at.program.steps[i].kind == Step::Kind::kReceive) {
        ASSERT_NEAR(guard.rest_seconds(i), rest, 1e-9) << "trial " << trial << ", step " << i;
      } else {
        ASSERT_GE(guard.rest_seconds(i), rest - 1e-9) << "trial " << trial << ", step " << i;
        ASSERT_LE(guard.rest_seconds(i), std::max(rest, guard.step_seconds(i) + guard.rest_seconds(i + 1)) + 1e-9);
      }
      ASSERT_NEAR(guard.step_seconds(i), seconds_of(at, {{at.program.steps[i]}}), 1e-12);
    }
    EXPECT_EQ(guard.rest_seconds(at.program.steps.size()), 0) << "at its end, all outputs are there";
  }
}

// A robot that starts each step in time and stops at the first that it cannot start in time meets the deadline.
// Proves I-3.
TEST(Guard, StoppingInTimeKeepsTheDeadline) {
  Dice dice(22);
  for (int trial = 0; trial < 300; ++trial) {
    const GuardCase at = any_case(dice);
    const Guard guard(at.graph, at.operators, at.lowered, at.program);
    const double margin = dice.real(0, 0.5);
    // An engine of the robot, in half of the cases, that answers from the inputs at any time.
    const double whole =
        dice.chance(0.5) ? std::numeric_limits<double>::infinity() : dice.real(0, guard.rest_seconds(0));
    const double deadline = std::min(whole, guard.rest_seconds(0)) + margin + dice.real(0, 5);
    const auto held = all_held(at);
    const auto alone = [&](std::size_t step) {
      return std::min(whole, seconds_of(at, rest_of(at.graph, at.operators, held[step])));
    };
    double now = 0;
    double end = -1;
    for (std::size_t i = 0; i < at.program.steps.size() && end < 0; ++i) {
      const double latest = guard.latest_start(deadline, i, margin, whole);
      const bool waits = at.program.steps[i].kind == Step::Kind::kReceive;
      const double wait = waits ? dice.real(0, 4) : 0;
      if (now > latest) {
        end = now + alone(i);
      } else if (waits && now + wait > latest) {
        end = latest + alone(i);
      } else {
        now += wait + guard.step_seconds(i);
      }
    }
    if (end < 0) end = now;
    EXPECT_LE(end, deadline + 1e-9) << "trial " << trial;
  }
}

TEST(Guard, DeadlinesByHedge) {
  EXPECT_EQ(guard_deadline(Hedge::kAlways, 3.0, 1, 0.1, 30), 0);
  EXPECT_EQ(guard_deadline(Hedge::kNever, 3.0, 1, 0.1, 30), 30);
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, 3.0, 1, 0.1, 30), 3);
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, {}, 1, 0.1, 30), plan::guarded_deadline({}, 1.1)) << "as in replays";
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, {}, 1, 0.1, 30), 2.2);
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, 0.5, 1, 0.1, 30), 1.6) << "the robot alone cannot keep it";
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, 1.05, 1, 0.1, 30), 1.05) << "this one is uncertain, but it is tried";
  EXPECT_EQ(guard_deadline(Hedge::kDeadline, 0.95, 1, 0.1, 30), 0.95);
  for (const Hedge hedge : {Hedge::kAlways, Hedge::kDeadline, Hedge::kNever})
    EXPECT_EQ(hedge_of(to_string(hedge)), hedge);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [] { hedge_of("sometimes"); }).find("always"), std::string::npos);
}

TEST(Guard, TheMarginFollowsTheJitter) {
  Jitter jitter;
  EXPECT_EQ(jitter.ratio(0), 1);
  EXPECT_NEAR(jitter.margin(0, 1), 0.1, 1e-12);
  EXPECT_EQ(jitter.margin(0, 0), 5e-4);
  for (int i = 0; i < 100; ++i) jitter.add(0, 1, i % 10 == 0 ? 1.5 : 1.0);
  EXPECT_EQ(jitter.ratio(0), 1);
  EXPECT_NEAR(jitter.margin(0, 2), 1, 1e-12);
  for (int i = 0; i < 200; ++i) jitter.add(1, 1, 0.5);
  EXPECT_EQ(jitter.ratio(1), 0.5);
  EXPECT_EQ(jitter.margin(1, 2), 5e-4);
  jitter.add(1, 0, 7);
  EXPECT_EQ(jitter.ratio(1), 0.5);
}

TEST(Guard, OneSlowInferenceIsForgotten) {
  Jitter alone;
  alone.add(0, 1, 10);
  EXPECT_EQ(alone.ratio(0), 10);
  EXPECT_NEAR(alone.margin(0, 1), 9, 1e-12);
  double before = alone.margin(0, 1);
  for (double now = 1; now < 300; ++now) {
    EXPECT_LE(alone.margin(now, 1), before);
    before = alone.margin(now, 1);
  }
  EXPECT_NEAR(before, 0.1 / 3, 1e-12) << "as if it had been a usual one";
  EXPECT_EQ(alone.ratio(300), 1);
  Jitter among_others;
  among_others.add(0, 1, 10);
  for (int i = 1; i <= 60; ++i) among_others.add(i, 1, 1);
  EXPECT_EQ(among_others.ratio(60), 1);
  EXPECT_EQ(among_others.margin(60, 1), 5e-4);
}

TEST(Guard, AFewUsualInferencesMakeTheMarginSmall) {
  Jitter jitter;
  double before = jitter.margin(0, 1);
  for (int i = 0; i < 4; ++i) {
    jitter.add(i, 1, 1);
    EXPECT_LT(jitter.margin(i, 1), before);
    before = jitter.margin(i, 1);
  }
  EXPECT_LT(before, 0.012);
  EXPECT_LT(jitter.margin(1e6, 1), 0.012) << "and they are not forgotten";
}

// A device that is always slower than it was measured is not believed to be quick again after a short rest.
TEST(Guard, WhatHappensAlwaysIsRememberedForLonger) {
  Jitter jitter;
  for (int i = 0; i < 50; ++i) jitter.add(i, 1, 2);
  EXPECT_EQ(jitter.ratio(100), 2);
  EXPECT_NEAR(jitter.margin(100, 1), 1, 1e-12);
}

TEST(PreparedPlans, ChoosesByTheLikelyRates) {
  Dice dice(23);
  plan::OperatorGraph layers = any_layers(dice);
  layers.operators.clear();
  const auto by_rows = [](Region region) { return region; };
  layers.operators.push_back({"input", 8, 80'000, {}, {}, {}});
  layers.operators.push_back({"layer", 8, 800, {0, 0.0125}, {0, 0.00025}, {{0, by_rows}}});
  layers.outputs = {1};
  test::register_layer_rule();
  const Graph graph = test::modelled_graph(layers);
  const auto set = prepare_plans(graph, test::modelled_profile(graph, test::Machine::kRobot),
                                 test::modelled_profile(graph, test::Machine::kServer), {1e7, 1e7, 0.001, false}, {});
  EXPECT_NEAR(set->local_seconds, 0.1, 1e-9);
  ASSERT_FALSE(set->plans.front());
  std::vector<bool> all(set->plans.size(), true);
  const auto choice = [&](std::vector<plan::RateWeight> rates, double ceiling) {
    return choose_plan(*set, rates, 0.1, ceiling, all);
  };
  EXPECT_GT(choice({{1e8, 1}}, 0.2).plan, 0U);
  EXPECT_LT(choice({{1e8, 1}}, 0.2).seconds, 0.02);
  EXPECT_EQ(choice({{1e4, 1}}, 0.2).plan, 0U);
  EXPECT_EQ(choice({{0, 1}}, 0.2).plan, 0U);
  // The link is down in one of three cases, a risk that is worth taking only with the guard.
  EXPECT_GT(choice({{1e8, 2}, {0, 1}}, 0.2).plan, 0U);
  EXPECT_EQ(choice({{1e8, 2}, {0, 1}}, 30).plan, 0U);
  all.assign(all.size(), false);
  EXPECT_EQ(choice({{1e8, 1}}, 0.2).plan, 0U);
  EXPECT_LE(set->bound_at(1e8), 0.02);
  EXPECT_LE(set->bound_at(1e5), 0.1);
  EXPECT_GE(set->bound_at(1e5), set->bound_at(1e8));
  all.assign(all.size(), true);
  const std::vector<plan::RateWeight> quick{{1e8, 1}};
  EXPECT_GT(choose_plan(*set, quick, 0.1, 0.2, all, 0.05).plan, 0U) << "worth waiting for";
  EXPECT_NEAR(choose_plan(*set, quick, 0.1, 0.2, all, 0.05).seconds, choice({{1e8, 1}}, 0.2).seconds + 0.05, 1e-12);
  EXPECT_EQ(choose_plan(*set, quick, 0.1, 0.2, all, 0.15).plan, 0U) << "the others are before it";
  EXPECT_NE(failure(ErrorKind::kMismatch,
                    [&] {
                      prepare_plans(graph, Profile{}, Profile{}, {1e7, 1e7, 0, false}, {});
                    }),
            "");
}

}  // namespace
}  // namespace atl::infer
