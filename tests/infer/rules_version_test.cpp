// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/rules_version.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "atoll/infer/run/program.h"
#include "atoll/plan/hash.h"
#include "infer_cases.h"
#include "tests/support/graph_text.h"

namespace atl::infer {
namespace {

using test::Builder;
using test::kSingle;

// Windows, borders, branches, resizing and a head, along the rows of an image.
Graph of_images() {
  Builder net;
  const int image = net.input({1, 3, 33, 32}, kSingle);
  const int kernel = net.weight({4, 3, 3, 3}, kSingle);
  const int a = net.call("aten::conv2d", {TensorId{image}, TensorId{kernel}, {}, Ints{2, 2}, Ints{1, 1}, Ints{1, 1}, 1},
                         {1, 4, 17, 16}, kSingle);
  const int b = net.call("aten::relu", {TensorId{a}}, {1, 4, 17, 16}, kSingle);
  const int c = net.call("aten::max_pool2d", {TensorId{b}, Ints{3, 3}, Ints{1, 1}, Ints{1, 1}, Ints{1, 1}, false},
                         {1, 4, 17, 16}, kSingle);
  const int d = net.call("aten::add.Tensor", {TensorId{c}, TensorId{b}, 1}, {1, 4, 17, 16}, kSingle);
  const int e = net.call("aten::upsample_nearest2d.vec", {TensorId{d}, Ints{34, 32}, {}}, {1, 4, 34, 32}, kSingle);
  const int f = net.call("aten::slice.Tensor", {TensorId{e}, 2, 1, 34, 1}, {1, 4, 33, 32}, kSingle);
  const int g = net.call("aten::cat", {TensorIds{{f, image}}, 1}, {1, 7, 33, 32}, kSingle);
  const int h = net.call("aten::mean.dim", {TensorId{g}, Ints{2, 3}, false, {}}, {1, 7}, kSingle);
  net.output(g);
  net.output(h);
  return net.graph();
}

// Sums over what is divided: norms, softmax, means.
Graph of_tokens() {
  Builder net;
  const int tokens = net.input({1, 12, 8}, kSingle);
  const int weight = net.weight({8, 8}, kSingle);
  const int scale = net.weight({8}, kSingle);
  const int a = net.call("aten::layer_norm", {TensorId{tokens}, Ints{8}, TensorId{scale}, TensorId{scale}, 1e-5, true},
                         {1, 12, 8}, kSingle);
  const int b = net.call("aten::linear", {TensorId{a}, TensorId{weight}, {}}, {1, 12, 8}, kSingle);
  const int c = net.call("aten::softmax.int", {TensorId{b}, 1, {}}, {1, 12, 8}, kSingle);
  const int d = net.call("aten::transpose.int", {TensorId{c}, 1, 2}, {1, 8, 12}, kSingle);
  const int e = net.call("aten::var.correction", {TensorId{d}, Ints{2}, std::int64_t{1}, true}, {1, 8, 1}, kSingle);
  net.output(net.call("aten::mul.Tensor", {TensorId{d}, TensorId{e}}, {1, 8, 12}, kSingle));
  return net.graph();
}

std::string text(Region rows) { return std::to_string(rows.begin) + "-" + std::to_string(rows.end) + " "; }

std::string text(const Program& program) {
  std::string said;
  for (const Step& step : program.steps) {
    said += std::to_string(static_cast<int>(step.kind)) + ":" + std::to_string(step.index) + ":" + text(step.rows);
  }
  return said + "\n";
}

// Everything in which robot and server have to agree, for one division of the graph.
std::string derived(const Graph& graph, int dim) {
  const int input = graph.inputs.front();
  const Operators operators = operators_of(graph, input, dim);
  std::string said;
  Plan division{input, dim, {}, 3};
  for (const Operators::Operator& each : operators.operators) {
    said += std::to_string(each.node) + ":" + std::to_string(each.rows) + ":" +
            std::to_string(static_cast<int>(each.part)) + " ";
    const std::int64_t half = (each.rows + 1) / 2;
    plan::Share share{{0, half}, {half, each.rows}};
    if (each.rows == 1) share = {{0, 1}, {}};
    if (each.node < 0) share = {{0, each.rows}, {}};
    division.shares.push_back(share);
    if (each.node < 0 || each.part != Operators::Part::kNode || each.rows < 2) continue;
    const Node& node = graph.nodes[static_cast<std::size_t>(each.node)];
    const int along = operators.dims[static_cast<std::size_t>(node.outputs.front())];
    for (const OperandSlice& read : slice(graph, node, along, {half, each.rows}).operands) said += text(read.rows);
  }
  for (const Operators::State& state : operators.states) {
    said += to_json(state.partial.state_calls(3)) + to_json(state.partial.result_calls(2, 5));
  }
  for (const plan::Side side : {plan::Side::kRobot, plan::Side::kServer}) {
    said += text(program_of(graph, operators, division, side));
  }
  return said;
}

// A change of what is derived must raise kRulesVersion, so that releases that would misinterpret each other's rows
// refuse each other; then the new values go here.
TEST(RulesVersion, IsRaisedWithWhatIsDerived) {
  EXPECT_EQ(kRulesVersion, 2U);
  EXPECT_EQ(plan::hash_of(derived(of_images(), 2)), 9812163965888778988U) << derived(of_images(), 2);
  EXPECT_EQ(plan::hash_of(derived(of_tokens(), 1)), 17575258338933889133U) << derived(of_tokens(), 1);
}

}  // namespace
}  // namespace atl::infer
