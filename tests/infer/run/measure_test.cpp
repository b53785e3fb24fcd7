// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/measure.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/infer/fake_runner.h"
#include "tests/infer/infer_cases.h"
#include "tests/support/modelled_runner.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::failure;
using test::Machine;
using test::ModelledRunner;

plan::OperatorGraph layers() {
  plan::OperatorGraph graph;
  const auto by_rows = [](Region region) { return region; };
  graph.operators.push_back({"input", 10, 640, {}, {}, {}});
  graph.operators.push_back({"fixed", 10, 640, {4e-3, 0}, {}, {{0, by_rows}}});
  graph.operators.push_back({"rows", 10, 640, {0, 4e-4}, {}, {{1, by_rows}}});
  graph.operators.push_back({"both", 10, 640, {2e-3, 2e-4}, {}, {{2, by_rows}, {1, by_rows}}});
  graph.operators.push_back({"all", 1, 64, {3e-3, 0}, {}, {{3, {}}}});
  graph.outputs = {4};
  return graph;
}

TEST(Measure, FindsWhatNodesTake) {
  const auto runner = std::make_shared<ModelledRunner>(Machine::kRobot);
  const Graph graph = test::modelled_graph(layers());
  const LoadedModel model(graph, {}, runner);
  const Operators operators = operators_of(graph, graph.inputs.front(), 0);
  const Profile profile = measure_profile(model, operators, 1);
  EXPECT_EQ(profile.device, runner->device());
  EXPECT_EQ(profile.input_tensor, graph.inputs.front());
  EXPECT_EQ(profile.dim, 0);
  ASSERT_EQ(profile.whole.size(), 4U);
  // The modelled device never takes less; a busy machine may take longer.
  const std::vector<double> whole = {4e-3, 4e-3, 4e-3, 3e-3};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_GT(profile.whole[i], 0.9 * whole[i]);
    EXPECT_NEAR(profile.fixed[i] + profile.per_row[i] * (i < 3 ? 10 : 1), profile.whole[i], 1e-9);
  }
  EXPECT_LT(profile.per_row[0], profile.per_row[1]);
  EXPECT_LT(profile.fixed[1], profile.fixed[0]);
  EXPECT_EQ(profile.per_row[3], 0);
  EXPECT_GE(profile.seconds(), 0.015);
  double sum = 0;
  for (const double each : profile.whole) sum += each;
  EXPECT_LE(sum, profile.seconds() * 1.001);
}

// A slice needs some rows of what comes before it, and that is measured at all of them.
TEST(Measure, FindsWhatNodesTakeOfWhichSomeRowsAreNeeded) {
  Builder builder;
  const int image = builder.input({1, 3, 64});
  const int relu = builder.call("aten::relu", {TensorId{image}}, {1, 3, 64});
  const int soft = builder.call("aten::softmax.int", {TensorId{relu}, 2, {}}, {1, 3, 64});
  builder.output(builder.call("aten::slice.Tensor", {TensorId{soft}, 2, 0, 40, 1}, {1, 3, 40}));
  const LoadedModel model(builder.graph(), {}, std::make_shared<test::FakeRunner>());
  const Profile profile = measure_profile(model, operators_of(model.graph(), image, 2), 0);
  ASSERT_EQ(profile.whole.size(), 3U);
  for (const double each : profile.whole) EXPECT_GT(each, 0);
}

TEST(Measure, StopsWhenAsked) {
  const auto runner = std::make_shared<ModelledRunner>(Machine::kRobot, 0);
  const Graph graph = test::modelled_graph(layers());
  const LoadedModel model(graph, {}, runner);
  const Operators operators = operators_of(graph, graph.inputs.front(), 0);
  EXPECT_NE(failure(ErrorKind::kAborted, [&] { measure_profile(model, operators, 1000, [] { return true; }); }), "");
  const Profile undivided = measure_profile(model, operators_of(graph, -1, -1), 0);
  EXPECT_EQ(undivided.input_tensor, -1);
  for (const double each : undivided.per_row) EXPECT_EQ(each, 0);
}

TEST(Measure, RoundsTellHowFarTheyAre) {
  const auto runner = std::make_shared<ModelledRunner>(Machine::kRobot, 0);
  const Graph graph = test::modelled_graph(layers());
  const LoadedModel model(graph, {}, runner);
  const Operators operators = operators_of(graph, graph.inputs.front(), 0);
  std::vector<std::pair<std::size_t, std::size_t>> told;
  const Profile profile = measure_rounds(model, operators, 3, [&](std::size_t done, std::size_t of) {
    told.emplace_back(done, of);
    return true;
  });
  EXPECT_EQ(profile.whole.size(), 4U);
  ASSERT_FALSE(told.empty());
  const std::size_t of = told.front().second;
  EXPECT_EQ(of % 4, 0U) << "a warm-up and three rounds";
  EXPECT_GE(of, 16U);
  told.erase(std::unique(told.begin(), told.end()), told.end());  // it is also called during a run of the whole model
  ASSERT_EQ(told.size(), of + 1);
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], std::pair(i, of));
}

TEST(Measure, RoundsEndWhenNobodyWants) {
  const auto runner = std::make_shared<ModelledRunner>(Machine::kRobot, 0);
  const Graph graph = test::modelled_graph(layers());
  const LoadedModel model(graph, {}, runner);
  const Operators operators = operators_of(graph, -1, -1);
  std::size_t asked = 0;
  const auto until_the_fifth = [&](std::size_t, std::size_t) { return ++asked < 5; };
  EXPECT_NE(failure(ErrorKind::kAborted, [&] { measure_rounds(model, operators, 1000, until_the_fifth); }), "");
  EXPECT_EQ(asked, 5U);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { measure_rounds(model, operators, 0); }).find("at least 1"),
            std::string::npos);
}

TEST(Measure, TheUsualSplitIsTheMostLocalOne) {
  Builder builder;
  const int image = builder.input({1, 3, 20, 30}, Dtype::kFloat32);
  const int weight = builder.weight({4, 3, 3, 3}, Dtype::kFloat32);
  const int hidden = builder.call(
      "aten::conv2d",
      {TensorId{image}, TensorId{weight}, std::monostate{}, Ints{1, 1}, Ints{1, 1}, Ints{1, 1}, std::int64_t{1}},
      {1, 4, 20, 30}, Dtype::kFloat32);
  const int relu = builder.call("aten::relu", {TensorId{hidden}}, {1, 4, 20, 30}, Dtype::kFloat32);
  builder.output(relu);
  EXPECT_EQ(usual_split(builder.graph()), (SplitDim{image, 2})) << "rows and columns are alike, channels are not local";
  Builder scalar;
  const int single = scalar.input({1}, Dtype::kFloat32);
  scalar.output(scalar.call("aten::relu", {TensorId{single}}, {1}, Dtype::kFloat32));
  EXPECT_EQ(usual_split(scalar.graph()), SplitDim{});
}

}  // namespace
}  // namespace atl::infer
