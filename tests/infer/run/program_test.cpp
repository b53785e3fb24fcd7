// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/program.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "atoll/plan/operators/exchange.h"
#include "atoll/plan/operators/timeline.h"
#include "tests/infer/run/cases.h"

namespace atl::infer {
namespace {

using plan::Side;
using test::at;
using test::Builder;
using test::Case;
using test::Dice;
using test::Divided;
using test::failure;
using Kind = Step::Kind;

// A convolution over three rows of ten, and the mean of all, with the states of its parts.
struct ConvolutionAndMean {
  Graph graph;
  int image, conv, mean;
  ConvolutionAndMean() {
    Builder builder;
    image = builder.input({1, 2, 10});
    const int weight = builder.weight({3, 2, 3});
    conv =
        builder.call("aten::conv1d", {TensorId{image}, TensorId{weight}, {}, Ints{1}, Ints{1}, Ints{1}, 1}, {1, 3, 10});
    mean = builder.call("aten::mean.dim", {TensorId{conv}, Ints{2}, true, {}}, {1, 3, 1});
    builder.output(mean);
    graph = builder.graph();
  }
  Program program(const std::vector<plan::Share>& shares, int chunks, Side side) const {
    const Plan division{image, 2, shares, chunks};
    return program_of(graph, operators_of(graph, image, 2), division, side);
  }
};

constexpr Region kNone{};
const plan::Share kInput{{0, 10}, kNone};

TEST(Program, OfOneSide) {
  const ConvolutionAndMean small;
  const std::vector<plan::Share> local{kInput, {{0, 10}, kNone}, {{0, 10}, kNone}, {{0, 1}, kNone}};
  EXPECT_EQ(
      small.program(local, 3, Side::kRobot).steps,
      (std::vector<Step>{{Kind::kCompute, 0, {0, 10}}, {Kind::kCompute, 1, {0, 1}}, {Kind::kFree, small.conv, {}}}));
  EXPECT_TRUE(small.program(local, 3, Side::kServer).steps.empty());

  const std::vector<plan::Share> offload{kInput, {kNone, {0, 10}}, {kNone, {0, 10}}, {kNone, {0, 1}}};
  EXPECT_EQ(small.program(offload, 1, Side::kRobot).steps,
            (std::vector<Step>{{Kind::kSend, small.image, {0, 10}}, {Kind::kReceive, small.mean, {0, 1}}}));
  EXPECT_EQ(small.program(offload, 1, Side::kServer).steps, (std::vector<Step>{{Kind::kReceive, small.image, {0, 10}},
                                                                               {Kind::kCompute, 0, {0, 10}},
                                                                               {Kind::kFree, small.image, {}},
                                                                               {Kind::kCompute, 1, {0, 1}},
                                                                               {Kind::kFree, small.conv, {}},
                                                                               {Kind::kSend, small.mean, {0, 1}},
                                                                               {Kind::kFree, small.mean, {}}}));
}

// The server makes rows [0, 4) of the convolution from rows [0, 5) of the image; both halves of these come apart.
TEST(Program, OfTwoSidesInChunks) {
  const ConvolutionAndMean small;
  const std::vector<plan::Share> shares{kInput, {{4, 10}, {0, 4}}, {{0, 10}, kNone}, {{0, 1}, kNone}};
  EXPECT_EQ(small.program(shares, 2, Side::kRobot).steps, (std::vector<Step>{{Kind::kSend, small.image, {0, 2}},
                                                                             {Kind::kSend, small.image, {2, 5}},
                                                                             {Kind::kCompute, 0, {4, 10}},
                                                                             {Kind::kReceive, small.conv, {0, 4}},
                                                                             {Kind::kCompute, 1, {0, 1}},
                                                                             {Kind::kFree, small.conv, {}}}));
  EXPECT_EQ(small.program(shares, 2, Side::kServer).steps, (std::vector<Step>{{Kind::kReceive, small.image, {0, 2}},
                                                                              {Kind::kCompute, 0, {0, 1}},
                                                                              {Kind::kReceive, small.image, {2, 5}},
                                                                              {Kind::kCompute, 0, {1, 4}},
                                                                              {Kind::kFree, small.image, {}},
                                                                              {Kind::kSend, small.conv, {0, 4}},
                                                                              {Kind::kFree, small.conv, {}}}));
}

// Each makes the state of its rows; the server's goes to the robot.
TEST(Program, OfStates) {
  const ConvolutionAndMean small;
  const Operators operators = operators_of(small.graph, small.image, 2);
  ASSERT_EQ(operators.states.size(), 1U);
  const int state = operators.states[0].tensor;
  EXPECT_EQ(state, static_cast<int>(small.graph.tensors.size()));
  EXPECT_EQ(rows_of(small.graph, operators, state), (Region{0, 10}));
  EXPECT_EQ(type_of_rows(small.graph, operators, state, {3, 7}), (Tensor{Dtype::kFloat64, {1, 1, 3, 1}}));
  const std::vector<plan::Share> shares{kInput, {{4, 10}, {0, 4}}, {{4, 10}, {0, 4}}, {{0, 1}, kNone}};
  EXPECT_EQ(small.program(shares, 1, Side::kRobot).steps, (std::vector<Step>{{Kind::kSend, small.image, {0, 5}},
                                                                             {Kind::kCompute, 0, {4, 10}},
                                                                             {Kind::kState, 1, {4, 10}},
                                                                             {Kind::kFree, small.conv, {}},
                                                                             {Kind::kReceive, state, {0, 4}},
                                                                             {Kind::kResult, 1, {0, 1}},
                                                                             {Kind::kFree, state, {}}}));
  EXPECT_EQ(small.program(shares, 1, Side::kServer).steps, (std::vector<Step>{{Kind::kReceive, small.image, {0, 5}},
                                                                              {Kind::kCompute, 0, {0, 4}},
                                                                              {Kind::kFree, small.image, {}},
                                                                              {Kind::kState, 1, {0, 4}},
                                                                              {Kind::kFree, small.conv, {}},
                                                                              {Kind::kSend, state, {0, 4}},
                                                                              {Kind::kFree, state, {}}}));
}

// Where both make states of some rows, each row is in one of them: the server has [0, 6), the robot [4, 10) and no
// result, so what it lacks there is [6, 10).
TEST(Program, OfStatesThatOverlap) {
  const ConvolutionAndMean small;
  const Operators operators = operators_of(small.graph, small.image, 2);
  const int state = operators.states[0].tensor;
  const std::vector<plan::Share> shares{kInput, {{4, 10}, {0, 6}}, {{4, 10}, {0, 6}}, {kNone, {0, 1}}};
  const auto of = [&](Side side, Kind kind) {
    std::vector<Region> rows;
    for (const Step& step : small.program(shares, 1, side).steps) {
      if (step.kind == kind && (step.kind == Kind::kState || step.index == state)) rows.push_back(step.rows);
    }
    return rows;
  };
  EXPECT_EQ(of(Side::kRobot, Kind::kState), (std::vector<Region>{{6, 10}, {4, 6}}));
  EXPECT_EQ(of(Side::kRobot, Kind::kSend), (std::vector<Region>{{6, 10}}));
  EXPECT_EQ(of(Side::kServer, Kind::kState), (std::vector<Region>{{0, 6}}));
  EXPECT_EQ(of(Side::kServer, Kind::kReceive), (std::vector<Region>{{6, 10}}));
}

TEST(Program, OfTheRest) {
  const ConvolutionAndMean small;
  const Operators operators = operators_of(small.graph, small.image, 2);
  const int state = operators.states[0].tensor;
  std::vector<std::vector<Region>> held(operators.dims.size());
  held[at(small.image)] = {{0, 10}};
  held[at(small.conv)] = {{0, 3}, {7, 8}};
  EXPECT_EQ(rest_of(small.graph, operators, held).steps, (std::vector<Step>{{Kind::kCompute, 0, {3, 7}},
                                                                            {Kind::kCompute, 0, {8, 10}},
                                                                            {Kind::kCompute, 1, {0, 1}},
                                                                            {Kind::kFree, small.conv, {}}}));
  held[at(small.mean)] = {{0, 1}};
  EXPECT_EQ(rest_of(small.graph, operators, held).steps, (std::vector<Step>{{Kind::kFree, small.conv, {}}}));
  held[at(small.mean)].clear();
  held[at(state)] = {{0, 6}};  // states that are held need not be made
  EXPECT_EQ(rest_of(small.graph, operators, held).steps, (std::vector<Step>{{Kind::kCompute, 0, {6, 7}},
                                                                            {Kind::kCompute, 0, {8, 10}},
                                                                            {Kind::kState, 1, {6, 10}},
                                                                            {Kind::kFree, small.conv, {}},
                                                                            {Kind::kResult, 1, {0, 1}},
                                                                            {Kind::kFree, state, {}}}));
  held[at(state)].clear();
  held[at(small.image)] = {{0, 3}};
  EXPECT_NE(
      failure(ErrorKind::kInvalidArgument, [&] { rest_of(small.graph, operators, held); }).find("not wholly held"),
      std::string::npos);
  held.pop_back();
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { rest_of(small.graph, operators, held); }), "");
}

TEST(Program, RefusesWhatIsNoPlan) {
  const ConvolutionAndMean small;
  const plan::Share states{{0, 10}, kNone};
  const std::vector<plan::Share> shares{kInput, {{5, 10}, {0, 4}}, states, {{0, 1}, kNone}};
  const auto refusal = [&](const std::vector<plan::Share>& each, int chunks) {
    return failure(ErrorKind::kInvalidArgument, [&] { small.program(each, chunks, Side::kServer); });
  };
  EXPECT_NE(refusal(shares, 1).find("the robot needs rows [0, 5) of operator 1 (aten::conv1d)"), std::string::npos);
  EXPECT_NE(refusal({kInput}, 1).find("1 share for 4 operators"), std::string::npos);
  EXPECT_NE(refusal({kInput, {{0, 10}, kNone}, states, {{0, 1}, kNone}}, 0).find("0 chunks"), std::string::npos);
  EXPECT_NE(refusal({{kNone, {0, 10}}, {{0, 10}, kNone}, states, {{0, 1}, kNone}}, 1).find("is an input"),
            std::string::npos);
  EXPECT_NE(refusal({kInput, {{0, 11}, kNone}, states, {{0, 1}, kNone}}, 1).find("has 10 rows"), std::string::npos);
}

// The rows that one side holds as it takes its steps.
class Holding {
 public:
  Holding(const Case& all, const Divided& divided, Side side)
      : all_(all),
        divided_(divided),
        side_(side),
        steps_(program_of(all.graph, divided.operators, divided.division, side).steps),
        held_(divided.operators.dims.size()) {
    if (side == Side::kRobot) {
      for (const int input : all.graph.inputs) hold(input, rows_of(all.graph, divided.operators, input));
    }
  }

  using Messages = std::set<std::tuple<int, std::int64_t, std::int64_t>>;
  bool is_over() const { return next_ == steps_.size(); }
  // Takes steps until one waits; returns whether there were any.
  bool advance(Messages& incoming, Messages& outgoing) {
    const std::size_t first = next_;
    for (; !is_over(); ++next_) {
      const Step& step = steps_[next_];
      const std::tuple message{step.index, step.rows.begin, step.rows.end};
      if (step.kind == Kind::kReceive) {
        if (incoming.erase(message) == 0) break;
        hold(step.index, step.rows);
      } else if (step.kind == Kind::kSend) {
        EXPECT_TRUE(holds(step.index, step.rows));
        EXPECT_TRUE(outgoing.insert(message).second);
      } else if (step.kind == Kind::kFree) {
        EXPECT_FALSE(held_[at(step.index)].empty());
        held_[at(step.index)].clear();
      } else {
        compute(step);
      }
    }
    return next_ > first;
  }
  bool holds(int tensor, Region rows) const {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      if (!held_[at(tensor)].contains(row)) return false;
    }
    return true;
  }
  std::vector<int> tensors() const {
    std::vector<int> held;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (!held_[i].empty()) held.push_back(static_cast<int>(i));
    }
    return held;
  }
  const std::vector<Step>& steps() const { return steps_; }

 private:
  void hold(int tensor, Region rows) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) EXPECT_TRUE(held_[at(tensor)].insert(row).second);
  }
  void compute(const Step& step) {
    const int result = divided_.operators.operator_of[at(all_.graph.nodes[at(step.index)].outputs.front())];
    const int index = step.kind == Kind::kState ? result - 1 : result;
    const auto& each = divided_.operators.operators[at(index)];
    EXPECT_EQ(step.kind == Kind::kState, each.part == Operators::Part::kState);
    const bool is_node =
        step.kind == Kind::kCompute && each.state >= 0;  // that needs sums and has all rows on this side
    if (is_node) {
      const Region states{0, divided_.operators.operators[at(index - 1)].rows};
      EXPECT_EQ(plan::made_by(divided_.division.shares[at(index - 1)], side_), states);
      EXPECT_EQ(step.rows, (Region{0, each.rows}));
      expect_operands(index - 1, states, -1);
    }
    EXPECT_TRUE(plan::made_by(divided_.division.shares[at(index)], side_).holds(step.rows));
    expect_operands(index, step.rows, is_node ? divided_.operators.states[at(each.state)].tensor : -1);
    for (const int tensor : each.makes) hold(tensor, step.rows);
  }
  void expect_operands(int index, Region rows, int without) {
    const std::vector<int> taken = taken_by(all_.graph, divided_.operators, index);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] == without) continue;
      const plan::Operand& operand = divided_.lowered.operators[at(index)].operands[i];
      const Region whole = rows_of(all_.graph, divided_.operators, taken[i]);
      EXPECT_TRUE(holds(taken[i], operand.needed ? operand.needed(rows) : whole));
    }
  }

  const Case& all_;
  const Divided& divided_;
  Side side_;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
  std::vector<std::set<std::int64_t>> held_;
};

// Both sides finish, each message is sent once and received once, every step has what it needs, and unused tensors are
// freed.
TEST(Program, BothSidesFitTogether) {
  Dice dice(201);
  int messages = 0;
  int states = 0;
  for (int i = 0; i < 1500; ++i) {
    const Case all(dice, 12);
    const Divided divided(dice, all);
    Holding robot(all, divided, Side::kRobot);
    Holding server(all, divided, Side::kServer);
    Holding::Messages up;
    Holding::Messages down;
    bool has_moved = true;
    while (has_moved) {
      has_moved = dice.chance(0.5) ? robot.advance(down, up) : server.advance(up, down);
      has_moved = robot.advance(down, up) || has_moved;
      has_moved = server.advance(up, down) || has_moved;
    }
    ASSERT_TRUE(robot.is_over() && server.is_over()) << i;
    ASSERT_TRUE(up.empty() && down.empty()) << i;
    for (const int tensor : outputs_of(all.graph)) {
      if (divided.operators.operator_of[at(tensor)] < 0) continue;
      ASSERT_TRUE(robot.holds(tensor, rows_of(all.graph, divided.operators, tensor))) << i;
    }
    ASSERT_TRUE(server.tensors().empty()) << i;
    const std::vector<int> outputs = outputs_of(all.graph);
    for (const int tensor : robot.tensors()) {
      ASSERT_TRUE(all.inputs.contains(tensor) || std::count(outputs.begin(), outputs.end(), tensor) == 1) << i;
    }
    for (const Step& step : robot.steps()) {
      messages += step.kind == Kind::kReceive || step.kind == Kind::kSend;
      states += step.kind == Kind::kResult;
    }
  }
  EXPECT_GT(messages, 3000);
  EXPECT_GT(states, 100);
}

// The same operators in the same order on each side, and as many bytes, as plan::simulate says.
TEST(Program, IsWhatTheTimelinePredicts) {
  Dice dice(202);
  for (int i = 0; i < 600; ++i) {
    const Case all(dice, 12);
    const Divided divided(dice, all);
    const plan::Timeline timeline =
        plan::simulate(divided.lowered, {1, 1, 0, false}, {}, divided.division.shares, divided.division.chunks);
    const bool is_exact = std::all_of(all.graph.nodes.begin(), all.graph.nodes.end(),
                                      [](const Node& node) { return node.outputs.size() == 1; });
    for (const Side side : {Side::kRobot, Side::kServer}) {
      std::vector<int> predicted;
      for (const plan::Event& event : timeline.events) {
        if (event.lane == (side == Side::kRobot ? plan::Lane::kRobot : plan::Lane::kServer)) {
          predicted.push_back(event.operator_index);
        }
      }
      std::vector<int> computed;
      double bytes = 0;
      for (const Step& step : program_of(all.graph, divided.operators, divided.division, side).steps) {
        if (computes(step)) {
          const int result = divided.operators.operator_of[at(all.graph.nodes[at(step.index)].outputs.front())];
          const int index = step.kind == Kind::kState ? result - 1 : result;
          const bool is_node = step.kind == Kind::kCompute && divided.operators.operators[at(index)].state >= 0;
          const int first = is_node ? index - 1 : index;  // its states and its result at once
          const bool goes_on = !computed.empty() && computed.back() == first;
          if (step.kind == Kind::kState || is_node) {
            if (!goes_on) computed.push_back(first);  // one state for each gap on the other side
          } else {
            computed.push_back(index);
          }
          if (is_node) computed.push_back(index);
        } else if (step.kind == Kind::kSend) {
          bytes += static_cast<double>(type_of_rows(all.graph, divided.operators, step.index, step.rows).bytes());
        }
      }
      ASSERT_EQ(computed, predicted) << i;
      const double promised = side == Side::kRobot ? timeline.up_bytes : timeline.down_bytes;
      ASSERT_LE(bytes, promised * (1 + 1e-9)) << i;
      if (is_exact) {
        ASSERT_NEAR(bytes, promised, 1e-9 * promised) << i;
      }
    }
  }
}

TEST(Operators, AreInputsAndWhatDependsOnThem) {
  Builder builder;
  const int image = builder.input({1, 4, 6}, Dtype::kUint8);
  const int weight = builder.weight({1, 4, 6});
  const int constant = builder.call("aten::relu", {TensorId{weight}}, {1, 4, 6});
  builder.call("aten::relu", {TensorId{constant}}, {1, 4, 6});  // unused
  const int copy = builder.call("aten::_to_copy", {TensorId{image}, Dtype::kFloat64, {}, {}, {}, false, {}}, {1, 4, 6});
  const int sum = builder.call("aten::add.Tensor", {TensorId{copy}, TensorId{constant}, 1}, {1, 4, 6});
  const std::vector<int> halves = builder.calls("aten::split.Tensor", {TensorId{sum}, 2, 1}, {{1, 2, 6}, {1, 2, 6}});
  builder.output(halves[1]);
  builder.output(constant);
  const Operators operators = operators_of(builder.graph(), image, 2);
  ASSERT_EQ(operators.operators.size(), 4U);
  EXPECT_EQ(operators.operators[0].node, -1);
  EXPECT_EQ(operators.operators[3].makes, (std::vector<int>{halves[1]}));
  for (const auto& each : operators.operators) EXPECT_EQ(each.rows, 6);
  EXPECT_EQ(operators.constants, (std::vector<int>{0}));
  EXPECT_EQ(operators.operator_of[at(weight)], -1);
  EXPECT_EQ(taken_by(builder.graph(), operators, 2), (std::vector<int>{copy}));
  EXPECT_EQ(outputs_of(builder.graph()), (std::vector<int>{halves[1], constant}));

  const NodeCosts robot(builder.graph().nodes.size(), {0.5, 3});
  const plan::OperatorGraph lowered = operator_graph(builder.graph(), operators, robot, {});
  plan::check(lowered);
  EXPECT_EQ(lowered.operators[0].bytes, 24);
  EXPECT_EQ(lowered.operators[3].bytes, 2 * 6 * 8);
  EXPECT_EQ(lowered.operators[1].robot.fixed, 0.5);
  EXPECT_EQ(lowered.operators[1].robot.per_row, 0.5);
  EXPECT_EQ(lowered.operators[0].robot.seconds(6), 0);
  EXPECT_EQ(lowered.outputs, (std::vector<int>{3}));
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { operator_graph(builder.graph(), operators, NodeCosts(2), {}); }),
            "");

  for (const auto& each : operators_of(builder.graph(), -1, -1).operators) EXPECT_EQ(each.rows, 1);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { operators_of(builder.graph(), -1, 2); }), "");
}

}  // namespace
}  // namespace atl::infer
