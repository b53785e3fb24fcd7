// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/attempt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;
using test::Machine;

class Counting : public FrameSender {
 public:
  void send(const wire::Message&) override { ++messages; }
  void send(const wire::FrameHeader&, HostBytes) override {
    ++frames;
    if (on_frame) on_frame();
  }
  int messages = 0;
  int frames = 0;
  std::function<void()> on_frame;
};

/// A device that never ends what it was given.
class BusyRunner : public test::ModelledRunner {
 public:
  BusyRunner() : ModelledRunner(Machine::kRobot, 0) {}
  bool wait_until(Deadline until) override {
    if (until.is_never()) throw Error(ErrorKind::kInternal, "the device is waited for without a deadline");
    if (on_look) on_look();
    return false;
  }
  std::function<void()> on_look;
};

/// A model of half a minute on the robot that is offloaded; here its operators take no time.
class AttemptTest : public testing::Test {
 protected:
  AttemptTest() {
    test::register_layer_rule();
    graph_ = test::modelled_graph(test::layers_of(30));
    PlanOptions options;
    options.policy = "offload";
    set_ = prepare_plans(graph_, test::modelled_profile(graph_, Machine::kRobot),
                         test::modelled_profile(graph_, Machine::kServer), {1e7, 1e7, 0.001, false}, options);
    model_ = std::make_unique<LoadedModel>(graph_, std::map<std::string, HostBytes>{}, runner_);
    run_ = std::make_unique<SplitRun>(
        graph_, set_, set_->pinned.value(), 7, sender_, [] { return 1e7; }, wire::Codec::kRaw);
    run_->arrivals().begin(1);
    run_->exchange().begin(1);
    inference_ = std::make_unique<Inference>(*model_, run_->operators());
    const int input = graph_.inputs.front();
    const Tensor& type = graph_.tensors.at(static_cast<std::size_t>(input));
    inference_->set_input(input, runner_->from_host(type, {given_ = test::modelled_input(type, 3), nullptr}));
  }
  static AttemptRules rules(Clock::time_point begin, double deadline, Hedge hedge = Hedge::kDeadline) {
    AttemptRules made;
    made.begin = begin;
    made.deadline = deadline;
    made.hedge = hedge;
    return made;
  }

  const std::shared_ptr<test::ModelledRunner> runner_ = std::make_shared<test::ModelledRunner>(Machine::kRobot, 0);
  Graph graph_;
  std::shared_ptr<const PreparedPlans> set_;
  std::vector<std::byte> given_;
  Counting sender_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<SplitRun> run_;
  std::unique_ptr<Inference> inference_;
};

TEST_F(AttemptTest, NothingIsSentThatComesTooLate) {
  Attempt attempt(*model_, *run_, *inference_, rules(Clock::now() - 1h, 1));
  EXPECT_FALSE(attempt.follow());
  EXPECT_TRUE(attempt.was_stopped_by_guard());
  EXPECT_EQ(sender_.frames, 0);
  attempt.finish_alone();
  EXPECT_FALSE(attempt.used_server());
  EXPECT_TRUE(attempt.used_robot());
}

TEST_F(AttemptTest, WhoHedgesAlwaysSendsAllTheSame) {
  Attempt attempt(*model_, *run_, *inference_, rules(Clock::now() - 1h, 0, Hedge::kAlways));
  EXPECT_FALSE(attempt.follow());
  EXPECT_GT(sender_.frames, 0);
}

TEST_F(AttemptTest, AQuickEngineMovesTheLastMoment) {
  AttemptRules late = rules(Clock::now() - 1h, 3600 + 20);
  Attempt without(*model_, *run_, *inference_, late);
  EXPECT_FALSE(without.follow());
  EXPECT_TRUE(without.was_stopped_by_guard());
  EXPECT_GT(sender_.frames, 0) << "the server may still be quicker";
  sender_.frames = 0;
  sender_.on_frame = [&] { run_->arrivals().fail(Error(ErrorKind::kPeerLost, "the server is gone")); };
  late.engine_seconds = 0;
  Attempt with(*model_, *run_, *inference_, late);
  EXPECT_FALSE(with.follow());
  EXPECT_FALSE(with.was_stopped_by_guard()) << "it waited for the server";
  EXPECT_TRUE(with.link_error());
  EXPECT_GT(sender_.frames, 0);
}

TEST_F(AttemptTest, TheServersAnswerEndsAWaitForTheDevice) {
  const auto busy = std::make_shared<BusyRunner>();
  LoadedModel model(graph_, {}, busy);
  for (const int first_look : {1, 5}) {
    run_->arrivals().begin(static_cast<std::uint64_t>(first_look + 1));
    run_->exchange().begin(static_cast<std::uint64_t>(first_look + 1));
    Inference inference(model, run_->operators());
    const Tensor& input = graph_.tensors.at(static_cast<std::size_t>(graph_.inputs.front()));
    inference.set_input(graph_.inputs.front(), busy->from_host(input, {given_, nullptr}));
    Attempt attempt(model, *run_, inference, rules(Clock::now(), 20));
    EXPECT_FALSE(attempt.follow());
    const int output = outputs_of(graph_).front();
    const Tensor& type = graph_.tensors.at(static_cast<std::size_t>(output));
    const std::vector<std::byte> answer = test::modelled_input(type, 5);
    int looks = 0;
    busy->on_look = [&] {
      if (++looks != first_look) return;
      wire::FrameHeader header;
      header.kind = wire::FrameKind::kTensor;
      header.id = static_cast<std::uint64_t>(first_look + 1);
      header.tensor = output;
      header.rows_end = static_cast<std::int32_t>(type.shape.front());
      header.message_bytes = header.payload_bytes = static_cast<std::uint32_t>(answer.size());
      run_->arrivals().take(header, answer);
    };
    attempt.finish_alone();
    EXPECT_TRUE(attempt.used_server());
    EXPECT_EQ(attempt.alone_seconds(), 0);
    const HostBytes got = busy->to_host(attempt.result().whole(output));
    EXPECT_TRUE(std::ranges::equal(got.bytes, answer)) << "not what the device would have made";
  }
}

TEST_F(AttemptTest, AnAnswerThatCannotBeReadLeavesWhatTheRobotHasMade) {
  Attempt attempt(*model_, *run_, *inference_, rules(Clock::now(), 20));
  EXPECT_FALSE(attempt.follow());
  const int output = outputs_of(graph_).front();
  const Tensor& type = graph_.tensors.at(static_cast<std::size_t>(output));
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kTensor;
  header.codec = wire::Codec::kZstd;
  header.id = 1;
  header.tensor = output;
  header.rows_end = static_cast<std::int32_t>(type.shape.front());
  const std::vector<std::byte> garbage(16, std::byte{7});
  header.message_bytes = header.payload_bytes = static_cast<std::uint32_t>(garbage.size());
  run_->arrivals().take(header, garbage);
  attempt.finish_alone();
  EXPECT_FALSE(attempt.used_server());
  EXPECT_TRUE(attempt.link_error());
  EXPECT_TRUE(attempt.used_robot());
  EXPECT_NO_THROW(attempt.result().whole(output));
}

TEST_F(AttemptTest, AProgramThatWaitsGoesOnWhenItsRowsHaveCome) {
  const auto is_receive = [](const Step& step) { return step.kind == Step::Kind::kReceive; };
  const auto is_send = [](const Step& step) { return step.kind == Step::Kind::kSend; };
  PlanOptions options;
  options.policy = "random";
  std::shared_ptr<const PreparedPlans> set;
  // It sends what it makes of received rows; most is left to the server, and nothing is computed twice.
  const auto goes_both_ways = [&] {
    const std::optional<PreparedPlan>& split = set->plans.at(set->pinned.value());
    if (!split) return false;
    const std::vector<Step>& steps = split->program.steps;
    double own = 0;
    double extra = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      own += split->guard.step_seconds(i);
      const double rest = split->guard.step_seconds(i) + split->guard.rest_seconds(i + 1);
      extra += std::max(0.0, rest - split->guard.rest_seconds(i));
    }
    if (own > split->guard.rest_seconds(0) / 2) return false;
    const auto first = std::ranges::find_if(steps, is_receive);
    return extra < 0.005 * split->guard.rest_seconds(0) && std::any_of(first, steps.end(), is_send);
  };
  do {
    ASSERT_LT(++options.operators.seed, 1000U) << "no plan goes both ways";
    set = prepare_plans(graph_, test::modelled_profile(graph_, Machine::kRobot),
                        test::modelled_profile(graph_, Machine::kServer), {1e7, 1e7, 0.001, false}, options);
  } while (!goes_both_ways());
  SplitRun run(
      graph_, set, set->pinned.value(), 8, sender_, [] { return 1e7; }, wire::Codec::kRaw);
  run.arrivals().begin(1);
  run.exchange().begin(1);
  const std::vector<Step>& steps = run.prepared().program.steps;
  const auto busy = std::make_shared<BusyRunner>();
  LoadedModel model(graph_, {}, busy);
  Inference inference(model, run.operators());
  const Tensor& input = graph_.tensors.at(static_cast<std::size_t>(graph_.inputs.front()));
  inference.set_input(graph_.inputs.front(), busy->from_host(input, {given_, nullptr}));
  Attempt attempt(model, run, inference, rules(Clock::now(), 20));
  ASSERT_FALSE(attempt.follow()) << "the robot alone takes longer than the deadline";
  auto next = steps.begin();
  busy->on_look = [&] {
    next = std::find_if(next, steps.end(), is_receive);
    if (next == steps.end()) return;
    const Tensor type = type_of_rows(graph_, run.operators(), next->index, next->rows);
    const std::vector<std::byte> rows = test::modelled_input(type, 5);
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kTensor;
    header.id = 1;
    header.tensor = next->index;
    header.rows_begin = static_cast<std::int32_t>(next->rows.begin);
    header.rows_end = static_cast<std::int32_t>(next->rows.end);
    header.message_bytes = header.payload_bytes = static_cast<std::uint32_t>(rows.size());
    run.arrivals().take(header, rows);
    ++next;
  };
  attempt.finish_alone();
  EXPECT_EQ(std::find_if(next, steps.end(), is_receive), steps.end()) << "all rows of the server were waited for";
  EXPECT_TRUE(attempt.used_server());
  EXPECT_EQ(&attempt.result(), &inference) << "the program came to its end";
  EXPECT_EQ(attempt.alone_seconds(), 0);
  EXPECT_EQ(sender_.frames, std::ranges::count_if(steps, is_send));
}

TEST_F(AttemptTest, AClosedSessionEndsItAnywhere) {
  TurnGate gate;
  AttemptRules closed = rules(Clock::now(), 1000);
  closed.gate = &gate;
  gate.close();
  Attempt attempt(*model_, *run_, *inference_, closed);
  EXPECT_NE(failure(ErrorKind::kAborted, [&] { attempt.follow(); }), "");
  EXPECT_NE(failure(ErrorKind::kAborted, [&] { attempt.finish_alone(); }), "");
  EXPECT_EQ(sender_.frames, 0);
}

}  // namespace
}  // namespace atl::infer
