// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/profiled.h"

#include <gtest/gtest.h>

#include "atoll/plan/operators/json.h"
#include "atoll/plan/operators/policies.h"
#include "tests/infer/run/cases.h"

namespace atl::infer {
namespace {

using json::Fields;
using json::Json;
using test::Dice;
using test::failure;

Profile any_profile(Dice& dice, const Graph& graph, int input, int dim) {
  Profile profile;
  profile.device = "a device";
  profile.input_tensor = input;
  profile.dim = dim;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    profile.fixed.push_back(dice.chance(0.3) ? 0 : dice.real(0, 1e-3));
    profile.per_row.push_back(dice.chance(0.3) ? 0 : dice.real(0, 1e-4));
    profile.whole.push_back(profile.fixed.back() + 10 * profile.per_row.back());
  }
  return profile;
}

plan::OperatorGraph operators_of_model(Json json) {
  json.erase("nodes");
  Fields fields(json, "the model");
  plan::OperatorGraph graph = plan::read_operators(fields);
  fields.done();
  return graph;
}

// For each row of each operator the same rows of its operands, if they exist, and for regions no more: a rule may name
// rows that only lie between needed rows and padding.
void expect_same_maps(const plan::OperatorGraph& a, const plan::OperatorGraph& b, std::size_t index) {
  const plan::Operator& mine = a.operators[index];
  const plan::Operator& its = b.operators[index];
  ASSERT_EQ(mine.operands.size(), its.operands.size());
  for (std::size_t i = 0; i < mine.operands.size(); ++i) {
    EXPECT_EQ(mine.operands[i].producer, its.operands[i].producer);
    ASSERT_EQ(static_cast<bool>(mine.operands[i].needed), static_cast<bool>(its.operands[i].needed));
    if (!mine.operands[i].needed) continue;
    const Region all{0, a.operators[static_cast<std::size_t>(mine.operands[i].producer)].rows};
    for (std::int64_t begin = 0; begin < mine.rows; ++begin) {
      for (std::int64_t end = begin + 1; end <= mine.rows; ++end) {
        const Region read = intersection(mine.operands[i].needed({begin, end}), all);
        const Region written = intersection(its.operands[i].needed({begin, end}), all);
        ASSERT_TRUE(written.holds(read)) << index << ", rows " << begin << " to " << end;
        if (end == begin + 1) {
          ASSERT_EQ(read, written) << index << ", row " << begin;
        }
      }
    }
  }
}

TEST(Profiled, IsReadAsItWasWritten) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const test::AnyGraph any(dice, 12);
    const Graph& graph = any.graph();
    const bool is_divided = dice.chance(0.8);
    const Profile robot = any_profile(dice, graph, any.image(), 2);
    const Profile server = is_divided ? any_profile(dice, graph, any.image(), 2) : any_profile(dice, graph, -1, -1);
    const ProfiledGraph made = profiled_graph(graph, robot, server);
    EXPECT_EQ(made.along, is_divided ? (SplitDim{any.image(), 2}) : SplitDim{});
    const Json json = Json::parse(profiled_json(graph, robot, &server));
    const plan::OperatorGraph again = operators_of_model(json);
    ASSERT_EQ(again.operators.size(), made.lowered.operators.size());
    EXPECT_EQ(again.outputs, made.lowered.outputs);
    ASSERT_EQ(json["nodes"].size(), again.operators.size());
    for (std::size_t i = 0; i < again.operators.size(); ++i) {
      const plan::Operator& wanted = made.lowered.operators[i];
      const plan::Operator& found = again.operators[i];
      EXPECT_EQ(found.name, wanted.name);
      EXPECT_EQ(found.rows, wanted.rows);
      EXPECT_EQ(found.bytes, wanted.bytes);
      EXPECT_EQ(found.robot.fixed, wanted.robot.fixed);
      EXPECT_EQ(found.robot.per_row, wanted.robot.per_row);
      EXPECT_EQ(found.server.fixed, wanted.server.fixed);
      EXPECT_EQ(found.server.per_row, wanted.server.per_row);
      EXPECT_EQ(json["nodes"][i], made.operators.operators[i].node);
      expect_same_maps(again, made.lowered, i);
    }
    const plan::LinkCost link{1e6, 1e6, 1e-4, false};
    const double seconds = plan::make_plan("tensor", made.lowered, link, {}).seconds;
    EXPECT_LE(plan::make_plan("tensor", again, link, {}).seconds, seconds * (1 + 1e-12));
  }
}

TEST(Profiled, WindowsAreWrittenAsSuch) {
  test::Builder builder;
  const int image = builder.input({1, 2, 40});
  const int weight = builder.weight({3, 2, 5});
  builder.output(builder.call(
      "aten::conv1d", {TensorId{image}, TensorId{weight}, std::monostate{}, Ints{2}, Ints{2}, Ints{1}, std::int64_t{1}},
      {1, 3, 20}));
  Dice dice(1);
  const Profile robot = any_profile(dice, builder.graph(), image, 2);
  const Json json = Json::parse(profiled_json(builder.graph(), robot, nullptr));
  EXPECT_EQ(json["operators"][1]["operands"][0]["map"], Json::parse(R"({"kernel": 5, "stride": 2, "padding": 2})"));
  EXPECT_EQ(json["operators"][1]["server"], Json::parse(R"({"fixed": 0.0, "per_row": 0.0})"));
  EXPECT_EQ(json["nodes"], Json::parse("[-1, 0]"));
}

TEST(Profiled, OfAnotherGraphIsRefused) {
  Dice dice(2);
  const test::AnyGraph any(dice, 5);
  const Profile good = any_profile(dice, any.graph(), any.image(), 2);
  for (std::vector<double> Profile::*each : {&Profile::fixed, &Profile::per_row, &Profile::whole}) {
    Profile wrong = good;
    (wrong.*each).push_back(0);
    EXPECT_NE(failure(ErrorKind::kMismatch, [&] { profiled_graph(any.graph(), wrong, good); }), "");
    EXPECT_NE(failure(ErrorKind::kMismatch, [&] { profiled_graph(any.graph(), good, wrong); }).find("measure this"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace atl::infer
