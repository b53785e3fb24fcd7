// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/timeline.h"
#include "stage_cases.h"

namespace atl::plan {
namespace {

using test::any_chain;
using test::any_graph;
using test::any_link;
using test::Dice;
using test::is_covered;
using test::kFastLink;
using test::kPower;
using test::Model;
using test::refusal;
using test::same;
using test::whole;
using test::window;

OperatorOptions quick(std::uint64_t seed) {
  OperatorOptions options;
  options.seed = seed;
  options.evaluations = 60;
  options.search.seconds = 1000;
  options.search.grids = {4, 8};
  return options;
}

// Operators that some output needs.
std::vector<int> wanted(const OperatorGraph& graph) {
  std::vector<int> result;
  for (const Stage& stage : stages_of(graph).stages) {
    result.insert(result.end(), stage.operators.begin(), stage.operators.end());
  }
  return result;
}

bool has_local(const OperatorGraph& graph) {
  for (const Operator& each : graph.operators) {
    for (const Operand& operand : each.operands) {
      if (operand.needed) return true;
    }
  }
  return false;
}

// Proves P-6.
TEST(OperatorPolicies, GiveValidPlansThatNoBoundForbids) {
  Dice dice(71);
  for (int i = 0; i < 200; ++i) {
    const OperatorGraph graph = dice.chance(0.7) ? any_graph(dice, 12, 7) : any_chain(dice, 12, 7);
    const LinkCost link = any_link(dice);
    const double bound = fluid_bound(graph, link).seconds;
    for (const std::string& policy : operator_policies()) {
      SCOPED_TRACE(policy + " " + std::to_string(i));
      OperatorOptions options = quick(static_cast<std::uint64_t>(i));
      options.is_literal = dice.chance(0.3);
      const OperatorPlan plan = make_plan(policy, graph, link, kPower, options);
      ASSERT_EQ(plan.policy, policy);
      ASSERT_EQ(plan.shares.size(), graph.operators.size());
      for (const int v : wanted(graph)) {
        ASSERT_TRUE(is_covered(plan.shares[static_cast<std::size_t>(v)], operator_at(graph, v).rows)) << v;
      }
      ASSERT_EQ(simulate(graph, link, kPower, plan.shares, plan.chunks).seconds, plan.seconds);
      ASSERT_GE(plan.seconds, bound * (1 - 1e-6));
    }
  }
}

// Proves P-7.
TEST(OperatorPolicies, AutoDoesNoHarm) {
  Dice dice(72);
  int split = 0;
  for (int i = 0; i < 150; ++i) {
    const OperatorGraph graph = dice.chance(0.5) ? any_graph(dice, 20, 7) : any_chain(dice, 20, 7);
    const LinkCost link = any_link(dice);
    const OperatorOptions options = quick(0);
    const OperatorPlan best = make_plan("auto", graph, link, kPower, options);
    double simple = HUGE_VAL;
    for (const char* policy : {"local", "offload", "cut", "stream"}) {
      simple = std::min(simple, make_plan(policy, graph, link, kPower, options).seconds);
    }
    ASSERT_LE(best.seconds, simple + 1e-12) << i;
    // What is split is worth it.
    if (best.seconds < simple) {
      ++split;
      ASSERT_LE(best.seconds, simple * (1 - options.search.margin)) << i;
    }
  }
  EXPECT_GT(split, 10);
}

TEST(OperatorPolicies, SimpleOnesAreWhatTheirNamesSay) {
  Dice dice(73);
  const OperatorGraph graph = any_chain(dice, 12, 6);
  const LinkCost link = any_link(dice);
  EXPECT_EQ(make_plan("local", graph, link, kPower).shares, everything_on(Side::kRobot, graph));
  EXPECT_EQ(make_plan("local", graph, link, kPower).up_bytes, 0);
  EXPECT_EQ(make_plan("offload", graph, link, kPower).shares, everything_on(Side::kServer, graph));
  EXPECT_EQ(make_plan("stream", graph, link, kPower).shares, everything_on(Side::kServer, graph));
  EXPECT_EQ(make_plan("stream", graph, link, kPower).chunks, 8);
  EXPECT_EQ(make_plan("cut", graph, link, kPower).shares, best_layer_cut(graph, link));
  OperatorOptions options;
  options.deadline = 0.1;
  EXPECT_EQ(make_plan("energy", graph, link, kPower, options).shares, energy_cut(graph, link, kPower, 0.1));
}

Model halves(int operators, double robot, double server) {
  Model model;
  int at = model.input(40, 40);
  for (int i = 0; i < operators; ++i) {
    at = model.add(40, 40, robot, server, {i % 2 == 0 ? same(at) : window(at, 40, 3, 1, 1)});
  }
  at = model.add(1, 1, robot, server, {whole(at)});
  model.graph.outputs = {at};
  return model;
}

TEST(OperatorPolicies, TensorDividesBySpeed) {
  const Model model = halves(5, 1, 3);
  const OperatorPlan plan = make_plan("tensor", model.graph, kFastLink, kPower);
  for (std::size_t v = 1; v < 6; ++v) EXPECT_EQ(plan.shares[v], (Share{{10, 40}, {0, 10}})) << v;
  EXPECT_EQ(plan.shares[6], (Share{{0, 1}, {}}));
}

// Proves P-1.
TEST(OperatorPolicies, RandomIsAFunctionOfTheSeed) {
  const Model model = halves(5, 1, 1);
  OperatorOptions options;
  const OperatorPlan plan = make_plan("random", model.graph, kFastLink, kPower, options);
  EXPECT_EQ(make_plan("random", model.graph, kFastLink, kPower, options), plan);
  options.seed = 1;
  EXPECT_NE(make_plan("random", model.graph, kFastLink, kPower, options).shares, plan.shares);
}

TEST(OperatorPolicies, EvolutionFindsSplits) {
  const Model model = halves(6, 1, 1);
  OperatorOptions options;
  options.evaluations = 3000;
  for (const char* policy : {"intra-dp", "hybrid-parallel"}) {
    const OperatorPlan plan = make_plan(policy, model.graph, kFastLink, kPower, options);
    EXPECT_LT(plan.seconds, 0.8 * make_plan("local", model.graph, kFastLink, kPower).seconds) << policy;
    EXPECT_EQ(make_plan(policy, model.graph, kFastLink, kPower, options), plan);
  }
}

TEST(OperatorPolicies, LargeTensorsAreNotSent) {
  Dice dice(74);
  int sent = 0;
  int large = 0;
  for (int i = 0; i < 100; ++i) {
    const OperatorGraph graph = any_graph(dice, 12, 7);
    double input_bytes = 0;
    for (const Operator& each : graph.operators) {
      if (each.operands.empty()) input_bytes += static_cast<double>(each.bytes);
    }
    if (!has_local(graph)) continue;  // then it is the cut
    LinkCost link = any_link(dice);
    link.up_bytes_per_second = link.down_bytes_per_second = 1e4;
    for (const char* policy : {"intra-dp", "hybrid-parallel"}) {
      const OperatorPlan plan = make_plan(policy, graph, link, kPower, quick(static_cast<std::uint64_t>(i)));
      for (const Event& event : simulate(graph, link, kPower, plan.shares).events) {
        if (event.lane != Lane::kUp && event.lane != Lane::kDown) continue;
        ++sent;
        ASSERT_LE(static_cast<double>(operator_at(graph, event.operator_index).bytes), input_bytes) << policy << i;
      }
    }
    for (const Operator& each : graph.operators) large += static_cast<double>(each.bytes) > input_bytes ? 1 : 0;
  }
  EXPECT_GT(sent, 100);
  EXPECT_GT(large, 100);
}

TEST(OperatorPolicies, OneShareForAStageIsOneForItsOperators) {
  Model model;
  const int input = model.input(40, 100);
  const int first = model.add(40, 40, 1, 1, {same(input)});
  const int branch = model.add(40, 40, 1, 1, {same(first)});
  const int sum = model.add(40, 40, 1, 1, {same(branch), same(first)});
  model.graph.outputs = {sum};
  const auto shares_of = [&](const char* policy, std::uint64_t seed) {
    OperatorOptions options = quick(seed);
    options.evaluations = 3;  // everything on the robot, and two vectors that nothing has pulled together yet
    const OperatorPlan plan = make_plan(policy, model.graph, kFastLink, kPower, options);
    return std::pair(plan.shares[static_cast<std::size_t>(branch)], plan.shares[static_cast<std::size_t>(sum)]);
  };
  int divided = 0;
  int different = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto [hybrid_branch, hybrid_sum] = shares_of("hybrid-parallel", seed);
    EXPECT_EQ(hybrid_branch, hybrid_sum);
    if (!hybrid_branch.robot.is_empty() && !hybrid_branch.server.is_empty()) ++divided;
    const auto [intra_branch, intra_sum] = shares_of("intra-dp", seed);
    if (intra_branch != intra_sum) ++different;
  }
  EXPECT_GT(divided, 5);
  EXPECT_GT(different, 5);
}

TEST(OperatorPolicies, LiteralOnesKnowWholeMegabytesOnly) {
  const Model model = halves(6, 1, 0.01);
  OperatorOptions options = quick(0);
  options.is_literal = true;
  LinkCost link{0.9e6, 0.9e6, 0, false};
  for (const char* policy : {"intra-dp", "hybrid-parallel"}) {
    EXPECT_EQ(make_plan(policy, model.graph, link, kPower, options).shares, everything_on(Side::kRobot, model.graph));
  }
  link.up_bytes_per_second = link.down_bytes_per_second = 1.9e6;
  LinkCost known = link;
  known.up_bytes_per_second = known.down_bytes_per_second = 1e6;
  const OperatorPlan plan = make_plan("intra-dp", model.graph, link, kPower, options);
  EXPECT_EQ(plan.shares, make_plan("intra-dp", model.graph, known, kPower, options).shares);
  EXPECT_LT(plan.seconds, make_plan("intra-dp", model.graph, known, kPower, options).seconds);
}

TEST(OperatorPolicies, WithoutLocalOperatorsIntraDpIsTheCut) {
  Model model;
  int at = model.input(1, 10);
  for (int i = 0; i < 4; ++i) at = model.add(i == 1 ? 8 : 1, 10, 1, 0.1, {whole(at)});
  model.graph.outputs = {at};
  const LinkCost link{100, 100, 0, false};
  EXPECT_EQ(make_plan("intra-dp", model.graph, link, kPower).shares, best_layer_cut(model.graph, link));
}

TEST(OperatorPolicies, AnUnknownOneIsRefusedWithTheKnown) {
  const Model model = halves(1, 1, 1);
  const std::string text = refusal([&] { make_plan("magic", model.graph, kFastLink, kPower); });
  EXPECT_NE(text.find("\"magic\""), std::string::npos);
  for (const std::string& policy : operator_policies()) EXPECT_NE(text.find(policy), std::string::npos) << policy;
}

}  // namespace
}  // namespace atl::plan
