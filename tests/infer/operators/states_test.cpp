// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "atoll/infer/regions.h"
#include "atoll/infer/safety/admit.h"
#include "tests/infer/run/cases.h"
#include "tests/support/loopback.h"

namespace atl::infer {
namespace {

using plan::Side;
using test::any_values;
using test::at;
using test::Builder;
using test::Dice;
using test::FakeRunner;
using test::plain;

// A node whose operand 0 is split along `dim`, which it sums over.
struct Summing {
  std::string name;
  std::vector<Shape> shapes;  // of operands, the first arguments
  std::vector<Argument> args;
  Shape output;
  int dim = 0;
};

std::vector<Summing> summing_nodes(Dice& dice) {
  const std::int64_t n = dice.integer(3, 9);
  const std::int64_t m = dice.integer(2, 5);
  const Shape image{2, 6, n, m};
  std::vector<Summing> nodes;
  for (const char* name : {"aten::mean.dim", "aten::sum.dim_IntList"}) {
    nodes.push_back({name, {image}, {Ints{2, 3}, true, {}}, {2, 6, 1, 1}, 2});
    nodes.push_back({name, {image}, {Ints{-2}, false, {}}, {2, 6, m}, 2});
    nodes.push_back({name, {image}, {Argument{}, false, {}}, {}, 2});
  }
  nodes.push_back({"aten::mean", {image}, {Argument{}}, {}, 2});
  for (const char* name : {"aten::amax", "aten::amin", "aten::logsumexp"}) {
    nodes.push_back({name, {image}, {Ints{1, 2}, false}, {2, m}, 2});
  }
  nodes.push_back({"aten::max", {image}, {}, {}, 3});
  nodes.push_back({"aten::var.correction", {image}, {Ints{2, 3}, {}, true}, {2, 6, 1, 1}, 2});
  nodes.push_back({"aten::std.dim", {image}, {Ints{2, 3}, false, true}, {2, 6, 1, 1}, 2});
  nodes.push_back({"aten::linalg_vector_norm", {image}, {2, Ints{2}, true, {}}, {2, 6, 1, m}, 2});
  nodes.push_back({"aten::softmax.int", {image}, {2, {}}, image, 2});
  nodes.push_back({"aten::log_softmax.int", {image}, {-2, {}}, image, 2});
  nodes.push_back({"aten::layer_norm", {image, {n, m}, {n, m}}, {}, image, 2});
  nodes.push_back({"aten::rms_norm", {image, {6, n, m}}, {}, image, 2});
  nodes.push_back({"aten::group_norm", {image, {6}, {6}}, {}, image, 2});
  nodes.push_back({"aten::instance_norm", {image}, {{}, {}, {}, {}, true, 0.1, 1e-5, false}, image, 3});
  nodes.push_back({"aten::linear", {{2, 7 * n}, {3, 7 * n}, {3}}, {}, {2, 3}, 1});
  return nodes;
}

// Arguments where operands do not come first.
std::vector<Argument> arguments(const Summing& node, const std::vector<int>& tensors) {
  std::vector<Argument> args;
  for (const int tensor : tensors) args.emplace_back(TensorId{tensor});
  args.insert(args.end(), node.args.begin(), node.args.end());
  const Shape& image = node.shapes.front();
  if (node.name == "aten::layer_norm") {
    args.insert(args.begin() + 1, Ints{image[2], image[3]});
    args.insert(args.end(), {1e-5, false});
  } else if (node.name == "aten::rms_norm") {
    args.insert(args.begin() + 1, Ints{image[1], image[2], image[3]});
    args.emplace_back(1e-6);
  } else if (node.name == "aten::group_norm") {
    args.insert(args.begin() + 1, 3);
    args.insert(args.end(), {1e-5, false});
  }
  return args;
}

struct Made {
  Graph graph;
  std::vector<Value> operands;
  Partial partial;

  Made(Dice& dice, const Summing& node) {
    Builder builder;
    std::vector<int> tensors;
    for (const Shape& shape : node.shapes) tensors.push_back(builder.input(shape));
    builder.output(builder.call(node.name, arguments(node, tensors), node.output));
    graph = builder.graph();
    for (const int tensor : tensors) operands.push_back(any_values(dice, graph.tensors[at(tensor)]));
    const auto found = infer::partial(graph, graph.nodes[0], 0, node.dim);
    if (!found) throw std::runtime_error(node.name + " is not partial");
    partial = *found;
  }

  std::vector<Value> taken(const std::vector<Partial::Taken>& what, Region rows) const {
    std::vector<Value> values;
    for (const Partial::Taken& of : what) {
      const Value& whole = operands.at(of.operand);
      values.push_back(of.dim < 0 ? whole : FakeRunner().narrow(whole, of.dim, rows));
    }
    return values;
  }
  // With a part between any two cuts, which makes its rows of the result, where that has rows.
  Value by_parts(const std::vector<std::int64_t>& cuts) const {
    FakeRunner runner;
    std::vector<Value> states;
    std::vector<double> shares;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Region rows{cuts[i], cuts[i + 1]};
      const Graph calls = partial.state_calls(rows.size());
      states.push_back(run(calls, taken(partial.of_state, rows)));
      EXPECT_EQ(plain(states.back()).shape, partial.state.shape);
      shares.push_back(static_cast<double>(rows.size()) / static_cast<double>(partial.rows));
    }
    const auto parts = static_cast<std::int64_t>(states.size());
    std::vector<Value> results;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Region rows{cuts[i], cuts[i + 1]};
      std::vector<Value> inputs{runner.join(states, 0), test::plain_value({parts}, shares)};
      for (const Value& each : taken(partial.of_result, rows)) inputs.push_back(each);
      results.push_back(run(partial.result_calls(parts, rows.size()), inputs));
      if (partial.output_dim < 0) return results.front();
    }
    return runner.join(results, partial.output_dim);
  }
  // The calls that the server would run are on its list, and make what they declare.
  static Value run(const Graph& calls, const std::vector<Value>& inputs) {
    check(calls);
    safety::admit(calls, {});
    EXPECT_EQ(calls.inputs.size(), inputs.size());
    FakeRunner runner;
    std::vector<Value> values(calls.tensors.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(plain(inputs[i]).shape, calls.tensors[at(calls.inputs[i])].shape);
      values[at(calls.inputs[i])] = inputs[i];
    }
    for (const Node& node : calls.nodes) {
      std::vector<Value> operands;
      for (const int tensor : operands_of(node)) operands.push_back(values[at(tensor)]);
      const std::vector<Value> made = runner.run(*runner.prepare(calls, node), operands, {});
      for (std::size_t i = 0; i < made.size(); ++i) {
        EXPECT_EQ(plain(made[i]).shape, calls.tensors[at(node.outputs[i])].shape) << node.name();
        values[at(node.outputs[i])] = made[i];
      }
    }
    return values[at(std::get<TensorId>(calls.outputs.front()).id)];
  }
};

std::vector<std::int64_t> any_cuts(Dice& dice, std::int64_t rows) {
  std::vector<std::int64_t> cuts{0, rows};
  for (std::int64_t i = dice.integer(0, 3); i > 0; --i) cuts.push_back(dice.integer(0, rows));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// However the rows are divided, the result is the same, of the shape that the node declares, from states that the
// server may make and that are no larger than the rule declares.
TEST(States, AnyPartsMakeTheSame) {
  Dice dice(401);
  for (int i = 0; i < 60; ++i) {
    for (const Summing& node : summing_nodes(dice)) {
      const Made made(dice, node);
      const Value one = made.by_parts({0, made.partial.rows});
      EXPECT_EQ(plain(one).shape, node.output) << node.name;
      EXPECT_LE(made.partial.state.bytes(), partial_bytes(made.graph, made.graph.nodes[0], 0, node.dim)) << node.name;
      const Value other = made.by_parts(any_cuts(dice, made.partial.rows));
      ASSERT_EQ(plain(one).shape, plain(other).shape);
      for (std::size_t k = 0; k < plain(one).data.size(); ++k) {
        ASSERT_NEAR(plain(one).data[k], plain(other).data[k], 1e-12 * std::max(1.0, std::abs(plain(one).data[k])))
            << node.name;
      }
    }
  }
}

// A single part computes the operator's definition.
TEST(States, OfAllRowsMakeTheNode) {
  Dice dice(402);
  const Made mean(dice, {"aten::mean.dim", {{1, 2, 4}}, {Ints{2}, true, {}}, {1, 2, 1}, 2});
  const std::vector<double>& x = plain(mean.operands[0]).data;
  EXPECT_NEAR(plain(mean.by_parts({0, 1, 4})).data[1], (x[4] + x[5] + x[6] + x[7]) / 4, 1e-15);
  const Made soft(dice, {"aten::softmax.int", {{4}}, {0, {}}, {4}, 0});
  const Value whole = test::soft_maximum(plain(soft.operands[0]), 0);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(plain(soft.by_parts({0, 3, 4})).data[i], plain(whole).data[i], 1e-15);
  }
}

// Values far from 0 are merged without cancellation.
TEST(States, VariancesFarFromZeroKeepTheirDigits) {
  Dice dice(403);
  Made made(dice, {"aten::var.correction", {{1000}}, {Ints{0}, 0, false}, {}, 0});
  std::vector<double> data = plain(made.operands[0]).data;
  const double small = plain(made.by_parts({0, 1000})).data[0];
  for (double& value : data) value += 1e8;
  made.operands[0] = test::plain_value({1000}, data);
  const double far = plain(made.by_parts({0, 1, 400, 1000})).data[0];
  EXPECT_NEAR(far, small, 1e-6 * small);
}

TEST(States, AreNotMadeWhereTheyGainNothing) {
  const auto is_partial = [](const std::string& name, const Shape& shape, std::vector<Argument> args,
                             const Shape& output, int dim) {
    Builder builder;
    args.insert(args.begin(), TensorId{builder.input(shape)});
    builder.call(name, args, output);
    return partial(builder.graph(), builder.last(), 0, dim).has_value();
  };
  EXPECT_TRUE(is_partial("aten::softmax.int", {4, 3}, {0, {}}, {4, 3}, 0));
  EXPECT_FALSE(is_partial("aten::softmax.int", {2, 3}, {0, {}}, {2, 3}, 0)) << "two numbers for two";
  EXPECT_FALSE(is_partial("aten::softmax.int", {4, 3}, {0, {}}, {4, 3}, 1)) << "local";
  EXPECT_FALSE(is_partial("aten::mean.dim", {1, 3}, {Ints{0}, true, {}}, {1, 3}, 0)) << "one row";
  EXPECT_FALSE(is_partial("aten::relu", {4, 3}, {}, {4, 3}, 0));
  EXPECT_FALSE(is_partial("aten::argmax", {4, 3}, {0, false}, {3}, 0)) << "no rule defines it";
  EXPECT_FALSE(is_partial("aten::linalg_vector_norm", {4, 3}, {1, Ints{0}, true, {}}, {1, 3}, 0));
  EXPECT_NE(test::failure(ErrorKind::kInvalidArgument,
                          [&] {
                            is_partial("aten::softmax.int", {4}, {0, {}}, {4}, 1);
                          }),
            "");
  // A norm whose mean is used.
  Builder builder;
  const int input = builder.input({2, 3, 8});
  const auto outputs = builder.calls("aten::native_layer_norm", {TensorId{input}, Ints{3, 8}, {}, {}, 1e-5},
                                     {{2, 3, 8}, {2, 1, 1}, {2, 1, 1}});
  EXPECT_TRUE(partial(builder.graph(), builder.last(), 0, 1).has_value());
  builder.output(outputs[1]);
  EXPECT_FALSE(partial(builder.graph(), builder.last(), 0, 1).has_value());
  // A norm that has statistics as well, which may be on one side only.
  Builder running;
  const int places = running.input({2, 6, 8});
  const int mean = running.input({6});
  running.call("aten::instance_norm",
               {TensorId{places}, {}, {}, TensorId{mean}, TensorId{mean}, true, 0.1, 1e-5, false}, {2, 6, 8});
  EXPECT_FALSE(partial(running.graph(), running.last(), 0, 2).has_value());
}

// Counts bytes on their way to one side.
class Counted final : public Exchange {
 public:
  explicit Counted(Exchange& link) : link_(link) {}
  void send(int tensor, Region rows, HostBytes bytes) override {
    sent += bytes.bytes.size();
    link_.send(tensor, rows, std::move(bytes));
  }
  std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override {
    return link_.receive(tensor, rows, until);
  }
  std::size_t sent = 0;

 private:
  Exchange& link_;
};

// Bytes that the server sends when it has the first half of the rows of softmax over rows and of their mean, or of what
// comes before alone.
std::size_t sent_by_server(bool makes_states) {
  Builder builder;
  const int image = builder.input({1, 3, 64});
  const int relu = builder.call("aten::relu", {TensorId{image}}, {1, 3, 64});
  const int soft = builder.call("aten::softmax.int", {TensorId{relu}, 2, {}}, {1, 3, 64});
  builder.output(builder.call("aten::mean.dim", {TensorId{soft}, Ints{2}, true, {}}, {1, 3, 1}));
  Dice dice(404);
  test::Case all(dice, builder.graph(), image);
  const Operators operators = operators_of(all.graph, image, 2);
  EXPECT_EQ(operators.states.size(), 2U);
  const Region low{0, 32};
  const Region high{32, 64};
  const plan::Share half{high, low};
  const plan::Share robots{{0, 64}, {}};
  Plan division{image, 2, {{{0, 64}, {}}, half, half, half, half, {{0, 1}, {}}}, 1};
  if (!makes_states) division.shares = {{{0, 64}, {}}, half, robots, robots, robots, {{0, 1}, {}}};
  const LoadedModel other(all.graph, {}, std::make_shared<FakeRunner>());
  test::Loopback link;
  Counted counted(link.server());
  std::thread server(
      [&] { Inference(other, operators).run(program_of(all.graph, operators, division, Side::kServer), counted); });
  Inference inference(*all.model, operators);
  all.set_inputs(inference);
  inference.run(program_of(all.graph, operators, division, Side::kRobot), link.robot());
  server.join();
  all.expect_outputs(inference, false);
  return counted.sent;
}

TEST(States, AreAFewBytesWhereRowsAreMany) {
  EXPECT_EQ(sent_by_server(false), 3U * 32 * 8) << "the rows of relu";
  EXPECT_EQ(sent_by_server(true), (3U * 2 + 3) * 8) << "two numbers for each channel, and one";
}

}  // namespace
}  // namespace atl::infer
