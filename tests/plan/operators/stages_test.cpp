// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/stages.h"

#include <gtest/gtest.h>

#include "stage_cases.h"

namespace atl::plan {
namespace {

using test::any_chain;
using test::any_graph;
using test::Dice;
using test::is_covered;
using test::Model;
using test::same;
using test::whole;
using test::window;

std::vector<std::vector<int>> operators_of(const StageChain& chain) {
  std::vector<std::vector<int>> result;
  for (const Stage& stage : chain.stages) result.push_back(stage.operators);
  return result;
}

using Groups = std::vector<std::vector<int>>;

TEST(Stages, OfAChainAreItsOperators) {
  Model model;
  int at = model.input(8, 10);
  for (int i = 0; i < 3; ++i) at = model.add(8, 10, 1, 1, {same(at)});
  model.graph.outputs = {at};
  const StageChain chain = stages_of(model.graph);
  EXPECT_EQ(chain.inputs, std::vector<int>{0});
  EXPECT_EQ(operators_of(chain), (Groups{{1}, {2}, {3}}));
  for (const Stage& stage : chain.stages) {
    EXPECT_EQ(stage.exits, stage.operators);
    EXPECT_EQ(stage.rows, 8);
  }
}

TEST(Stages, HoldBranchesTogether) {
  Model model;
  const int input = model.input(8, 10);
  const int first = model.add(8, 10, 1, 1, {same(input)});
  const int branch = model.add(8, 10, 1, 1, {window(first, 8, 3, 1, 1)});
  const int sum = model.add(8, 10, 1, 1, {same(branch), same(first)});
  const int dense = model.add(8, 10, 1, 1, {same(sum)});
  const int denser = model.add(8, 10, 1, 1, {same(sum), same(dense)});
  const int densest = model.add(4, 10, 1, 1, {window(denser, 8, 2, 2, 0), window(dense, 8, 2, 2, 0)});
  model.graph.outputs = {densest};
  const StageChain chain = stages_of(model.graph);
  EXPECT_EQ(operators_of(chain), (Groups{{first}, {branch, sum}, {dense, denser, densest}}));
  EXPECT_EQ(chain.stages.back().rows, 4);
}

TEST(Stages, LeaveOutWhatNothingNeeds) {
  Model model;
  const int input = model.input(8, 10);
  const int first = model.add(8, 10, 1, 1, {same(input)});
  const int dead = model.add(8, 10, 1, 1, {same(input)});
  const int last = model.add(8, 10, 1, 1, {same(first)});
  model.graph.outputs = {last};
  EXPECT_EQ(operators_of(stages_of(model.graph)), (Groups{{first}, {last}}));
  const std::vector<Meeting> meetings{{1, 4, 4}};
  EXPECT_EQ(shares_through(model.graph, stages_of(model.graph), meetings)[static_cast<std::size_t>(dead)], Share{});
}

TEST(Stages, EndWithAllOutputsThatAreKept) {
  Model model;
  const int input = model.input(8, 10);
  const int first = model.add(8, 10, 1, 1, {same(input)});
  const int kept = model.add(8, 20, 1, 1, {same(first)});
  const int next = model.add(8, 10, 1, 1, {same(kept)});
  const int last = model.add(1, 40, 1, 1, {whole(next)});
  model.graph.outputs = {last, kept, input};
  const StageChain chain = stages_of(model.graph);
  EXPECT_EQ(operators_of(chain), (Groups{{first}, {kept, next, last}}));
  EXPECT_EQ(chain.stages.back().exits, (std::vector<int>{kept, last}));
  EXPECT_EQ(chain.stages.back().rows, 1);
  EXPECT_EQ(exit_bytes(model.graph, chain.stages.back()), 60);
}

TEST(Stages, BeginWithAllInputs) {
  Model model;
  const int image = model.input(8, 10);
  const int mask = model.input(8, 10);
  const int first = model.add(8, 10, 1, 1, {same(image)});
  const int second = model.add(8, 10, 1, 1, {same(first), same(mask)});
  const int last = model.add(8, 10, 1, 1, {same(second)});
  model.graph.outputs = {last};
  const StageChain chain = stages_of(model.graph);
  EXPECT_EQ(chain.inputs, (std::vector<int>{image, mask}));
  EXPECT_EQ(operators_of(chain), (Groups{{first, second}, {last}}));
  const std::vector<Passage> all = passages(model.graph, chain, 1, 6, std::vector<int>{0});
  EXPECT_EQ(all[0].input_bytes, 2 * 10 * 6 / 8.0);
  EXPECT_EQ(all[0].input_messages, 2);
}

TEST(Stages, AreNoneWhereTheOutputIsTheInput) {
  Model model;
  model.graph.outputs = {model.input(8, 10)};
  EXPECT_TRUE(stages_of(model.graph).stages.empty());
}

// An operator is an exit when every path from an input to the output meets it: count the paths that do.
TEST(Stages, ExitsAreWhatAllPathsMeet) {
  Dice dice(51);
  int inner = 0;
  for (int i = 0; i < 500; ++i) {
    OperatorGraph graph = any_graph(dice, 4, static_cast<int>(dice.integer(1, 9)));
    graph.outputs = {static_cast<int>(graph.operators.size()) - 1};
    const std::size_t size = graph.operators.size();
    std::vector<double> into(size, 0);  // paths from inputs
    std::vector<double> onto(size, 0);  // paths to the output
    for (std::size_t v = 0; v < size; ++v) {
      if (graph.operators[v].operands.empty()) into[v] = 1;
      for (const Operand& operand : graph.operators[v].operands) {
        into[v] += into[static_cast<std::size_t>(operand.producer)];
      }
    }
    onto.back() = 1;
    for (std::size_t v = size; v-- > 0;) {
      for (const Operand& operand : graph.operators[v].operands) {
        onto[static_cast<std::size_t>(operand.producer)] += onto[v];
      }
    }
    std::vector<int> expected;
    for (std::size_t v = 0; v < size; ++v) {
      const bool is_input = graph.operators[v].operands.empty();
      if (!is_input && into[v] * onto[v] == into.back()) expected.push_back(static_cast<int>(v));
    }
    std::vector<int> exits;
    for (const Stage& stage : stages_of(graph).stages) exits.push_back(stage.exits.at(0));
    ASSERT_EQ(exits, expected) << i;
    inner += static_cast<int>(expected.size()) - 1;
  }
  EXPECT_GT(inner, 300);
}

TEST(Stages, RowsFollowThroughWindows) {
  Model model;
  const int input = model.input(16, 160);
  const int first = model.add(16, 16, 16, 32, {window(input, 16, 3, 1, 1)});
  const int second = model.add(16, 16, 16, 32, {window(first, 16, 3, 1, 1)});
  const int pooled = model.add(8, 16, 8, 16, {window(second, 16, 2, 2, 0)});
  model.graph.outputs = {pooled};
  const StageChain chain = stages_of(model.graph);
  const std::vector<Passage> all = passages(model.graph, chain, 2, 3, std::vector<int>{0, 1});
  // Rows 0-2 of the pooling need 0-5 of the second, 0-6 of the first, 0-7 of the input; the others 6-15, 5-15, 4-15.
  EXPECT_EQ(all[2].server_needs, (Region{0, 6}));
  EXPECT_EQ(all[2].robot_needs, (Region{6, 16}));
  EXPECT_EQ(all[1].server_needs, (Region{0, 7}));
  EXPECT_EQ(all[1].robot_needs, (Region{5, 16}));
  EXPECT_EQ(all[1].server_makes, 7);
  EXPECT_EQ(all[1].robot_makes, 5);
  EXPECT_DOUBLE_EQ(all[2].server_seconds, 3 * 2);
  EXPECT_DOUBLE_EQ(all[1].server_seconds, 3 * 2 + 6 * 2);
  EXPECT_DOUBLE_EQ(all[0].server_seconds, 3 * 2 + 6 * 2 + 7 * 2);
  EXPECT_DOUBLE_EQ(all[0].robot_seconds, 5 + 10 + 11);
  EXPECT_EQ(all[0].input_bytes, 80);
  EXPECT_EQ(all[0].input_messages, 1);
}

TEST(Stages, RowsThatAStridePassesOverHaveAnOwner) {
  EXPECT_EQ(closed({{6, 12}, {0, 5}}, 13), (Share{{6, 13}, {0, 6}}));
  EXPECT_EQ(closed({{3, 12}, {0, 5}}, 13), (Share{{3, 13}, {0, 5}}));
  EXPECT_EQ(closed({{}, {1, 5}}, 13), (Share{{}, {0, 13}}));
  EXPECT_EQ(closed({{4, 5}, {}}, 13), (Share{{0, 13}, {}}));
  EXPECT_EQ(closed({}, 13), Share{});
}

// For any two cuts of any stage: all rows are made, each side has what it needs within the stage, and the seconds and
// needs of passages() are those of the shares.
TEST(Stages, PassagesAgreeWithShares) {
  Dice dice(52);
  for (int i = 0; i < 300; ++i) {
    const OperatorGraph graph = dice.chance(0.5) ? any_graph(dice, 9, 6) : any_chain(dice, 9, 5);
    const StageChain chain = stages_of(graph);
    const int last = static_cast<int>(chain.stages.size()) - 1;
    const std::int64_t rows = chain.stages.back().rows;
    const std::int64_t end = dice.integer(0, rows);
    const std::int64_t begin = dice.integer(0, end);
    std::vector<Meeting> meetings{{last, end, begin}};
    std::vector<int> from;
    if (last > 0 && dice.chance(0.5)) {  // meet in the middle as well
      const int middle = static_cast<int>(dice.integer(0, last - 1));
      const std::int64_t middle_end = dice.integer(0, chain.stages[static_cast<std::size_t>(middle)].rows);
      meetings.insert(meetings.begin(), Meeting{middle, middle_end, dice.integer(0, middle_end)});
      from.push_back(middle);
    }
    const std::vector<Share> shares = shares_through(graph, chain, meetings);
    const Passage server = passages(graph, chain, last, end, from).back();
    const Passage robot = passages(graph, chain, last, begin, from).back();
    double server_seconds = 0;
    double robot_seconds = 0;
    Region server_needs;
    Region robot_needs;
    const int entry = from.empty() ? -1 : chain.stages[static_cast<std::size_t>(from[0])].exits[0];
    for (std::size_t k = 0; k < chain.stages.size(); ++k) {
      const bool is_last_passage = from.empty() || static_cast<int>(k) > from[0];
      for (const int v : chain.stages[k].operators) {
        const Operator& made = operator_at(graph, v);
        const Share& share = shares[static_cast<std::size_t>(v)];
        ASSERT_TRUE(is_covered(share, made.rows)) << i;
        if (!is_last_passage) continue;
        server_seconds += made.server.seconds(share.server.size());
        robot_seconds += made.robot.seconds(share.robot.size());
        for (const Operand& operand : made.operands) {
          const std::int64_t operand_rows = operator_at(graph, operand.producer).rows;
          const Region on_server = rows_needed(operand, share.server, operand_rows);
          const Region on_robot = rows_needed(operand, share.robot, operand_rows);
          if (operand.producer == entry) {
            server_needs = hull(server_needs, on_server);
            robot_needs = hull(robot_needs, on_robot);
          } else if (!operator_at(graph, operand.producer).operands.empty()) {
            const Share& held = shares[static_cast<std::size_t>(operand.producer)];
            ASSERT_TRUE(held.server.holds(on_server)) << i;
            ASSERT_TRUE(held.robot.holds(on_robot)) << i;
          }
        }
      }
    }
    ASSERT_NEAR(server.server_seconds, server_seconds, 1e-9) << i;
    ASSERT_NEAR(robot.robot_seconds, robot_seconds, 1e-9) << i;
    if (from.empty()) continue;
    ASSERT_EQ(server.server_needs, server_needs) << i;
    ASSERT_EQ(robot.robot_needs, robot_needs) << i;
  }
}

}  // namespace
}  // namespace atl::plan
