// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

// A session with an engine of its own: whatever becomes of the engine, every answer is there and right.
namespace atl::infer {
namespace {

using test::SessionTest;

// Computes the model's operators at once, until it is told to fail.
class Engine : public LocalEngine {
 public:
  explicit Engine(const Bundle& bundle)
      : model_(bundle.graph, bundle.weights, std::make_shared<test::ModelledRunner>(test::Machine::kRobot, 0)),
        operators_(operators_of(model_.graph(), -1, -1)) {}

  std::vector<Value> run(std::span<const Value> inputs) override {
    if (throws) throw std::runtime_error("it is broken");
    if (stalls) open_.wait();
    if (during_run) during_run();
    Inference inference(model_, operators_);
    const int input = model_.graph().inputs.front();
    inference.set_input(input, inputs.front());
    std::vector<std::vector<Region>> held(model_.graph().tensors.size());
    held[static_cast<std::size_t>(input)] = {{0, 1}};
    inference.run(rest_of(model_.graph(), operators_, held), no_exchange());
    return {inference.whole(std::get<TensorId>(model_.graph().outputs.front()).id)};
  }
  std::atomic<bool> throws = false;
  std::atomic<bool> stalls = false;
  std::promise<void> gate;
  std::function<void()> during_run;

 private:
  const std::shared_future<void> open_ = gate.get_future().share();
  LoadedModel model_;
  Operators operators_;
};

class SessionEngine : public SessionTest {
 protected:
  /// A session on a robot that computes `speed` times as fast as its profile says.
  std::unique_ptr<Session> with_engine(SessionOptions made, double speed = 1) {
    engine_ = std::make_shared<Engine>(bundle());
    return std::make_unique<Session>(std::move(made), bundle(),
                                     std::make_shared<test::ModelledRunner>(test::Machine::kRobot, speed), engine_);
  }
  /// Options without a server, and with an engine that may take seconds, as it can on a busy machine.
  std::unique_ptr<Session> with_patience() {
    use(test::layers_of(2));
    return with_engine(options(""), 100);
  }
  std::shared_ptr<Engine> engine_;
};

TEST_F(SessionEngine, AnswersWhatTheModelDoes) {
  const auto session = with_patience();
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_LT(run(*session, i).predicted, 1);
  const EngineReport report = session->report().engine;
  EXPECT_EQ(report.state, "used");
  EXPECT_EQ(report.runs, 3U);
  EXPECT_NE(session->report().json().find(R"("state":"used")"), std::string::npos);
}

TEST_F(SessionEngine, WhatItDoesNotAnswerTheModelDoes) {
  const auto session = with_patience();
  engine_->throws = true;
  for (std::uint64_t i = 0; i < 5; ++i) run(*session, i);
  EngineReport report = session->report().engine;
  EXPECT_EQ(report.state, "given up");
  EXPECT_EQ(report.failures, 3U);
  EXPECT_EQ(report.runs, 0U);
  EXPECT_NE(report.text.find("it is broken"), std::string::npos);
  EXPECT_GE(session->report().local_seconds, 0.01) << "the model's own time counts again";
}

TEST_F(SessionEngine, ThatStallsIsNotWaitedFor) {
  auto session = with_engine(options(""));
  engine_->stalls = true;
  for (std::uint64_t i = 0; i < 4; ++i) run(*session, i);
  EXPECT_EQ(session->report().engine.late, 1U);
  session.reset();
  engine_->gate.set_value();
}

TEST_F(SessionEngine, GivesNoAnswerOnceTheSessionIsClosed) {
  const auto session = with_patience();
  std::thread closing;
  engine_->during_run = [&] {
    closing = std::thread([&] { session->close(); });
    EXPECT_THROW(run(*session, 2), Error);  // closing the session ends its wait for a turn
  };
  EXPECT_NE(test::failure(ErrorKind::kAborted, [&] { run(*session, 1); }), "");
  closing.join();
}

TEST_F(SessionEngine, HelpsWhereAServerIsLost) {
  test::ScriptedServer server(credentials_);
  const auto session = with_engine(options(server.address()));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  server.set({.is_stuck = true});
  engine_->throws = true;
  for (std::uint64_t i = 0; i < 4; ++i) run(*session, i);
  engine_->throws = false;
  for (std::uint64_t i = 4; i < 8; ++i) run(*session, i);
}

TEST_F(SessionEngine, OfAnotherModelIsRefused) {
  const auto other = std::make_shared<Engine>(bundle());
  use(test::layers_of(0.03, 12));
  const std::string why = test::failure(ErrorKind::kInvalidArgument, [&] {
    Session(options(""), bundle(), std::make_shared<test::ModelledRunner>(test::Machine::kRobot, 1), other);
  });
  EXPECT_NE(why.find("the robot's engine"), std::string::npos) << why;
}

}  // namespace
}  // namespace atl::infer
