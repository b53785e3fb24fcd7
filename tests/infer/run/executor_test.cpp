// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/executor.h"

#include <map>
#include <thread>
#include <tuple>

#include "atoll/infer/plan.h"
#include "tests/infer/run/cases.h"
#include "tests/support/loopback.h"

namespace atl::infer {
namespace {

using plan::Side;
using test::Builder;
using test::Case;
using test::Dice;
using test::Divided;
using test::failure;
using test::FakeRunner;
using test::plain;
using test::plain_value;

Program program(const Case& all, const Divided& divided, Side side) {
  return program_of(all.graph, divided.operators, divided.division, side);
}

// A model of the same graph with a runner of its own, for another thread.
LoadedModel other_side(const Case& all) {
  std::map<std::string, HostBytes> weights;
  const auto runner = std::make_shared<FakeRunner>();
  for (const Weight& weight : all.graph.weights) {
    weights[weight.name] = runner->to_host(all.tensors[static_cast<std::size_t>(weight.tensor)]);
  }
  return {all.graph, weights, runner};
}

TEST(Executor, TwoSidesMakeWhatOneMakes) {
  Dice dice(301);
  for (int i = 0; i < 400; ++i) {
    const Case all(dice, 12);
    const Divided divided(dice, all);
    const LoadedModel other = other_side(all);
    test::Loopback link;
    std::thread server([&] {
      Inference inference(other, divided.operators);
      EXPECT_TRUE(inference.run(program(all, divided, Side::kServer), link.server()));
      for (const auto& held : inference.held()) EXPECT_TRUE(held.empty());
    });
    Inference inference(*all.model, divided.operators);
    all.set_inputs(inference);
    EXPECT_TRUE(inference.run(program(all, divided, Side::kRobot), link.robot()));
    server.join();
    ASSERT_NO_FATAL_FAILURE(all.expect_outputs(inference, divided.operators.states.empty())) << i;
  }
}

TEST(Executor, RunsAlone) {
  Dice dice(302);
  for (int i = 0; i < 100; ++i) {
    const Case all(dice, 12);
    const Operators operators = operators_of(all.graph, -1, -1);
    Inference inference(*all.model, operators);
    all.set_inputs(inference);
    EXPECT_TRUE(inference.run(rest_of(all.graph, operators, inference.held()), no_exchange()));
    ASSERT_NO_FATAL_FAILURE(all.expect_outputs(inference)) << i;
  }
}

// Returns what it was given before.
class Recorded final : public Exchange {
 public:
  explicit Recorded(Exchange* link) : link_(link) {}
  void send(int tensor, Region rows, HostBytes bytes) override {
    if (link_ != nullptr) link_->send(tensor, rows, std::move(bytes));
  }
  std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override {
    const std::tuple message{tensor, rows.begin, rows.end};
    if (link_ != nullptr) messages_[message] = link_->receive(tensor, rows, until);
    return messages_.at(message);
  }
  void cut() { link_ = nullptr; }

 private:
  Exchange* link_;
  std::map<std::tuple<int, std::int64_t, std::int64_t>, std::optional<HostBytes>> messages_;
};

// After any number of its steps, the robot can compute the outputs alone, and uses what it has.
TEST(Executor, StopsAnywhere) {
  Dice dice(303);
  int reused = 0;
  for (int i = 0; i < 100; ++i) {
    const Case all(dice, 10);
    const Divided divided(dice, all);
    const LoadedModel other = other_side(all);
    test::Loopback link;
    std::thread server(
        [&] { Inference(other, divided.operators).run(program(all, divided, Side::kServer), link.server()); });
    Recorded recorded(&link.robot());
    const Program whole = program(all, divided, Side::kRobot);
    Inference first(*all.model, divided.operators);
    all.set_inputs(first);
    const Program alone = rest_of(all.graph, divided.operators, first.held());
    first.run(whole, recorded);
    server.join();
    recorded.cut();
    for (std::size_t steps = 0; steps <= whole.steps.size(); ++steps) {
      Inference inference(*all.model, divided.operators);
      all.set_inputs(inference);
      std::size_t asked = 0;
      ASSERT_EQ(inference.run(whole, recorded, [&] { return asked++ < steps; }), steps == whole.steps.size());
      const Program rest = rest_of(all.graph, divided.operators, inference.held());
      if (rest != alone) ++reused;
      ASSERT_TRUE(inference.run(rest, no_exchange()));
      ASSERT_NO_FATAL_FAILURE(all.expect_outputs(inference, divided.operators.states.empty())) << i << ", " << steps;
    }
  }
  EXPECT_GT(reused, 100);
}

// The image goes through a convolution and comes out.
struct OneConvolution {
  Graph graph;
  int image, weight, conv;
  explicit OneConvolution(std::int64_t rows = 6) {
    Builder builder;
    image = builder.input({1, 1, rows});
    weight = builder.weight({1, 1, 3});
    conv = builder.call("aten::conv1d", {TensorId{image}, TensorId{weight}, {}, Ints{1}, Ints{1}, Ints{1}, 1},
                        {1, 1, rows});
    builder.output(conv);
    graph = builder.graph();
  }
  std::map<std::string, HostBytes> weights(std::size_t count = 3) const {
    const auto data = std::make_shared<const std::vector<double>>(count, 1.0);
    return {{graph.weights[0].name, {std::as_bytes(std::span(*data)), data}}};
  }
  LoadedModel load(std::shared_ptr<OperatorRunner> runner = std::make_shared<FakeRunner>()) const {
    return {graph, weights(), std::move(runner)};
  }
  Plan division(Region robot, Region server) const { return {image, 2, {{{0, 6}, {}}, {robot, server}}, 1}; }
  Value input() const { return plain_value({1, 1, 6}, {1, 2, 3, 4, 5, 6}); }
};

TEST(Executor, AsksWhetherToGoOnWhileItWaits) {
  const OneConvolution small;
  const LoadedModel model = small.load();
  const Operators operators = operators_of(small.graph, small.image, 2);
  const Program robot = program_of(small.graph, operators, small.division({}, {0, 6}), Side::kRobot);
  Inference inference(model, operators);
  inference.set_input(small.image, small.input());
  test::Loopback link;
  int asked = 0;
  EXPECT_FALSE(inference.run(robot, link.robot(), [&] { return ++asked < 10; }));
  EXPECT_EQ(asked, 10);  // two steps, and the other calls while it waits
  EXPECT_EQ(link.server().receive(small.image, {0, 6}, Deadline::never())->bytes.size(), 48U);

  link.close(std::make_exception_ptr(Error(ErrorKind::kPeerLost, "the server is gone")));
  EXPECT_EQ(failure(ErrorKind::kPeerLost, [&] { inference.run(robot, link.robot()); }), "the server is gone");
  EXPECT_TRUE(inference.run(rest_of(small.graph, operators, inference.held()), no_exchange()));
  EXPECT_EQ(plain(inference.whole(small.conv)).data, (std::vector<double>{3, 6, 9, 12, 15, 11}));
}

TEST(Executor, JoinsPiecesOnce) {
  const OneConvolution small;
  const LoadedModel model = small.load();
  const Operators operators = operators_of(small.graph, small.image, 2);
  Inference inference(model, operators);
  inference.set_input(small.image, small.input());
  const Program pieces{{{Step::Kind::kCompute, 0, {4, 6}}, {Step::Kind::kCompute, 0, {0, 2}}}};
  inference.run(pieces, no_exchange());
  EXPECT_EQ(inference.held()[static_cast<std::size_t>(small.conv)], (std::vector<Region>{{0, 2}, {4, 6}}));
  EXPECT_NE(failure(ErrorKind::kInternal, [&] { inference.whole(small.conv); }).find("rows [2, 6) of tensor"),
            std::string::npos);
  inference.run({{{Step::Kind::kCompute, 0, {1, 5}}}}, no_exchange());  // some twice
  const Value joined = inference.whole(small.conv);
  EXPECT_EQ(plain(joined).data, (std::vector<double>{3, 6, 9, 12, 15, 11}));
  EXPECT_EQ(inference.whole(small.conv), joined);
}

TEST(Executor, RefusesModelsThatDoNotFit) {
  const OneConvolution small;
  const auto runner = std::make_shared<FakeRunner>();
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { LoadedModel(small.graph, {}, runner); }).find("is missing"),
            std::string::npos);
  EXPECT_NE(failure(ErrorKind::kProtocol, [&] { LoadedModel(small.graph, small.weights(2), runner); })
                .find("has 16 bytes, and float64[1, 1, 3] has 24"),
            std::string::npos);
  const LoadedModel model = small.load();
  Builder builder;
  builder.output(builder.input({1}));
  const Operators others = operators_of(builder.graph(), -1, -1);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { Inference(model, others); }), "");
}

// An operator that makes another type than the graph declares.
class Liar final : public FakeRunner {
 public:
  Tensor type_of(const Value& value) const override {
    Tensor type = FakeRunner::type_of(value);
    type.dtype = Dtype::kFloat32;
    return type;
  }
};

TEST(Executor, LooksAtWhatOperatorsMake) {
  const OneConvolution small;
  const LoadedModel model = small.load(std::make_shared<Liar>());
  const Operators operators = operators_of(small.graph, -1, -1);
  Inference inference(model, operators);
  inference.set_input(small.image, small.input());
  EXPECT_EQ(failure(ErrorKind::kInvalidArgument,
                    [&] {
                      inference.run({{{Step::Kind::kCompute, 0, {0, 1}}}}, no_exchange());
                    }),
            "node 0 (aten::conv1d) returned float32[1, 1, 6], not float64[1, 1, 6]");
}

TEST(Executor, NobodyExchangesNothing) {
  EXPECT_NE(failure(ErrorKind::kInternal,
                    [] {
                      no_exchange().send(3, {0, 1}, {});
                    })
                .find("tensor 3"),
            std::string::npos);
  EXPECT_NE(failure(ErrorKind::kInternal, [] { no_exchange().receive(3, {0, 1}, Deadline::never()); }), "");
}

}  // namespace
}  // namespace atl::infer
