// SPDX-License-Identifier: Apache-2.0
// Operators whose rows are summed up to a state, which sides exchange (Operator::is_state).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "atoll/plan/operators/exchange.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/policies.h"
#include "atoll/plan/operators/region_search.h"
#include "atoll/plan/operators/timeline.h"
#include "stage_cases.h"

namespace atl::plan {
namespace {

using json::Fields;
using json::Json;
using test::any_chain;
using test::any_graph;
using test::any_link;
using test::Dice;
using test::exact;
using test::kPower;
using test::Model;
using test::refusal;
using test::same;
using test::whole;

Operator& operator_in(OperatorGraph& graph, int index) { return graph.operators[static_cast<std::size_t>(index)]; }

/// Turns some operators into states, whose consumers need all rows. Returns how many.
int make_states(Dice& dice, OperatorGraph& graph, double chance) {
  int states = 0;
  for (int i = 0; i < static_cast<int>(graph.operators.size()); ++i) {
    const bool is_output = std::find(graph.outputs.begin(), graph.outputs.end(), i) != graph.outputs.end();
    if (operator_in(graph, i).operands.empty() || is_output || !dice.chance(chance)) continue;
    operator_in(graph, i).is_state = true;
    ++states;
    for (Operator& user : graph.operators) {
      for (Operand& operand : user.operands) {
        if (operand.producer == i) operand.needed = nullptr;
      }
    }
  }
  return states;
}

// An image, a layer, the mean of its rows, and what the layer's rows are made into by it: [image, layer, states, mean,
// scaled, end].
struct Gate {
  Model model;
  explicit Gate(std::int64_t rows, std::int64_t layer_bytes = 8000) {
    const int image = model.input(rows, 8);
    const int layer = model.add(rows, layer_bytes, 0.8, 0.8, {same(image)});
    const int states = model.add(rows, 8, 0, 0, {same(layer)});
    operator_in(model.graph, states).is_state = true;
    const int mean = model.add(1, 8, 0, 0, {whole(states)});
    const int scaled = model.add(rows, layer_bytes, 0.8, 0.8, {same(layer), whole(mean)});
    const int end = model.add(rows, 8, 0.8, 0.8, {same(scaled)});
    model.graph.outputs = {end};
    check(model.graph);
  }
};

const LinkCost kLink{1000, 1000, 0.001, false};

TEST(States, AreSentOnceForEachRegion) {
  Gate gate(8);
  const Operator& states = operator_in(gate.model.graph, 2);
  EXPECT_EQ(message_bytes(states, {}), 0);
  EXPECT_EQ(message_bytes(states, {{0, 1}}), 8);
  EXPECT_EQ(message_bytes(states, {{0, 7}}), 8);
  EXPECT_EQ(message_bytes(states, {{0, 1}, {3, 4}}), 16);
  EXPECT_EQ(message_bytes(operator_in(gate.model.graph, 1), {{0, 2}}), 2000);
}

// Both compute half of everything and wait for each other's state.
TEST(States, AreWaitedForByBothSides) {
  const Gate gate(8);
  const Share half{{4, 8}, {0, 4}};
  const Share both{{0, 1}, {0, 1}};
  const std::vector<Share> shares{{{0, 8}, {}}, half, half, both, half, half};
  const Timeline timeline = simulate(gate.model.graph, kLink, kPower, shares);
  const double input = 0.004 + 0.001;
  const double state = 0.008 + 0.001;
  EXPECT_NEAR(timeline.seconds, input + 0.4 + state + 0.8, 1e-9);  // the robot waits longer, the server sends its rows
  EXPECT_NEAR(timeline.up_bytes, 4 + 8, 1e-9);
  EXPECT_NEAR(timeline.down_bytes, 8 + 4, 1e-9);
}

TEST(States, AreRefusedWhereTheyCannotBe) {
  const auto refused = [](const std::function<void(OperatorGraph&)>& change) {
    Gate gate(8);
    change(gate.model.graph);
    return refusal([&] { check(gate.model.graph); });
  };
  EXPECT_EQ(refused([](OperatorGraph&) {}), "");
  EXPECT_NE(refused([](OperatorGraph& graph) { graph.outputs = {2}; }).find("output 2 is a state"), std::string::npos);
  EXPECT_NE(refused([](OperatorGraph& graph) { operator_in(graph, 0).is_state = true; }).find("state without operands"),
            std::string::npos);
  EXPECT_NE(
      refused([](OperatorGraph& graph) { graph.operators[4].operands[1] = same(2); }).find("leave `needed` empty"),
      std::string::npos);
}

TEST(States, AreRead) {
  const Json model = Json::parse(R"({"operators": [
      {"name": "image", "rows": 4, "bytes": 4},
      {"rows": 4, "bytes": 8, "state": true, "operands": [{"producer": 0, "map": {"kernel": 1}}]},
      {"bytes": 8, "operands": [{"producer": 1}]}], "outputs": [2]})");
  Fields fields(model, "the model");
  const OperatorGraph graph = read_operators(fields);
  EXPECT_FALSE(graph.operators[0].is_state);
  EXPECT_TRUE(graph.operators[1].is_state);
}

// No shares, in any number of chunks, take less than the bound.
TEST(States, LeaveTheBoundABound) {
  Dice dice(501);
  int states = 0;
  for (int i = 0; i < 400; ++i) {
    OperatorGraph graph = any_graph(dice, 8, static_cast<int>(dice.integer(2, 9)));
    states += make_states(dice, graph, 0.4);
    const LinkCost link = any_link(dice);
    const double bound = fluid_bound(graph, link).seconds;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      OperatorOptions options;
      options.seed = seed;
      const OperatorPlan plan = make_plan("random", graph, link, kPower, options);
      const int chunks = static_cast<int>(dice.integer(1, 4));
      ASSERT_GE(simulate(graph, link, kPower, plan.shares, chunks).seconds, bound * (1 - 1e-6)) << i << ", " << seed;
    }
  }
  EXPECT_GT(states, 300);
}

TEST(States, GoThroughEveryPolicy) {
  Dice dice(502);
  for (int i = 0; i < 60; ++i) {
    OperatorGraph graph = any_graph(dice, 8, static_cast<int>(dice.integer(2, 9)));
    make_states(dice, graph, 0.4);
    const LinkCost link = any_link(dice);
    const double bound = fluid_bound(graph, link).seconds;
    OperatorOptions options;
    options.evaluations = 50;
    options.search.seconds = 1000;
    for (const std::string& policy : operator_policies()) {
      for (const bool is_literal : {false, true}) {
        options.is_literal = is_literal;
        const OperatorPlan plan = make_plan(policy, graph, link, kPower, options);
        ASSERT_GE(plan.seconds, bound * (1 - 1e-6)) << i << ", " << policy;
      }
    }
  }
}

/// Returns the least predicted time over all regions at the exits of all stages: the server [0, end), the robot [begin,
/// rows).
double best_of_meetings(const OperatorGraph& graph, const LinkCost& link) {
  const StageChain chain = stages_of(graph);
  std::vector<Meeting> meetings(chain.stages.size());
  double best = HUGE_VAL;
  const std::function<void(std::size_t)> choose = [&](std::size_t stage) {
    if (stage == meetings.size()) {
      best = std::min(best, simulate(graph, link, kPower, shares_through(graph, chain, meetings), 1).seconds);
      return;
    }
    for (std::int64_t end = 0; end <= chain.stages[stage].rows; ++end) {
      for (std::int64_t begin = 0; begin <= end; ++begin) {
        meetings[stage] = {static_cast<int>(stage), end, begin};
        choose(stage + 1);
      }
    }
  };
  choose(0);
  return best;
}

// Where states are tensors through which all of a model passes, as of a mean at its end, the search is exact.
TEST(States, AreSearchedExactlyInChains) {
  Dice dice(503);
  int divided = 0;
  for (int i = 0; i < 300; ++i) {
    OperatorGraph graph = any_chain(dice, 3, 4);
    make_states(dice, graph, 0.4);
    const LinkCost link = any_link(dice, false);
    const RegionPlan found = search_regions(graph, link, kPower, exact(3));
    ASSERT_NEAR(found.plan.seconds, best_of_meetings(graph, link), 1e-9) << i;
    for (std::size_t k = 0; k < graph.operators.size(); ++k) {
      const Share& share = found.plan.shares[k];
      divided += graph.operators[k].is_state && !share.robot.is_empty() && !share.server.is_empty() ? 1 : 0;
    }
  }
  EXPECT_GT(divided, 0);
}

// Inside of a stage: the search goes through the exchange, and finds about the best of all shares.
TEST(States, AreExchangedWithinAStage) {
  const Gate gate(8);
  const OperatorGraph& graph = gate.model.graph;
  const RegionPlan found = search_regions(graph, kLink, kPower, exact(8));
  EXPECT_EQ(found.plan.policy, "regions");
  EXPECT_LT(found.plan.seconds, 1.3) << "half of 2.4 s, and little for the link";
  EXPECT_GE(found.plan.seconds, found.bound * (1 - 1e-6));
  const Share& states = found.plan.shares[2];
  EXPECT_EQ(states.robot.begin, states.server.end);
  EXPECT_FALSE(states.robot.is_empty() || states.server.is_empty());
  EXPECT_LT(found.plan.up_bytes + found.plan.down_bytes, 40);
  // If rows had to be gathered instead, both would compute the layer whole.
  Gate gathered(8);
  operator_in(gathered.model.graph, 2).is_state = false;
  EXPECT_GT(search_regions(gathered.model.graph, kLink, kPower, exact(8)).plan.seconds, 1.55);
}

TEST(States, WithinAStageAreAsGoodAsAnyShares) {
  const Gate gate(2);
  const OperatorGraph& graph = gate.model.graph;
  std::vector<Share> shares(graph.operators.size());
  shares[0] = {{0, 2}, {}};
  double best = HUGE_VAL;
  const std::function<void(std::size_t)> choose = [&](std::size_t index) {
    if (index == shares.size()) {
      best = std::min(best, simulate(graph, kLink, kPower, shares).seconds);
      return;
    }
    const std::int64_t rows = graph.operators[index].rows;
    for (std::int64_t end = 0; end <= rows; ++end) {
      for (std::int64_t begin = 0; begin <= end; ++begin) {
        shares[index] = {{begin, rows}, {0, end}};
        choose(index + 1);
      }
    }
  };
  choose(1);
  EXPECT_NEAR(search_regions(graph, kLink, kPower, exact(2)).plan.seconds, best, 0.01 * best);
}

// Both halves of a passage name the same states, whatever its cut.
TEST(States, ArePassedInOrder) {
  const Gate gate(8);
  const StageChain chain = stages_of(gate.model.graph);
  const std::vector<int> from{0};
  const int last = static_cast<int>(chain.stages.size()) - 1;
  for (std::int64_t cut = 0; cut <= 8; ++cut) {
    const Passage passage = passages(gate.model.graph, chain, last, cut, from)[1];
    ASSERT_EQ(passage.exchanges.size(), 1U);
    const StateExchange& exchange = passage.exchanges[0];
    const bool is_divided = cut > 0 && cut < 8;
    EXPECT_EQ(exchange.bytes, 8);
    EXPECT_EQ(exchange.server_lacks, is_divided);
    EXPECT_EQ(exchange.robot_lacks, is_divided);
    EXPECT_NEAR(exchange.server_after, 0.2 * static_cast<double>(cut), 1e-12);
    EXPECT_NEAR(exchange.robot_after, 0.2 * static_cast<double>(8 - cut), 1e-12);
    EXPECT_EQ(passage.server_needs, (Region{0, cut}));
  }
}

}  // namespace
}  // namespace atl::plan
