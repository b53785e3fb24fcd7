// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/server.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/infer/serve/cases.h"

namespace atl::infer::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST_F(ServeTest, AnswersAreThoseOfOneMachine) {
  start();
  const ServedGraph model(chain_of_layers(20, 5));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 7);
  for (std::uint64_t inference = 1; inference <= 20; ++inference) {
    const auto input = model.input(inference);
    begin(*robot, model, inference, 7, input);
    ASSERT_EQ(answer(*robot, inference), model.expected(input)) << inference;
  }
  const ServerCounts counts = server_->counts();
  EXPECT_EQ(counts.inferences, 20u);
  EXPECT_EQ(counts.uploads, 1u);
  EXPECT_EQ(counts.workers, 1u);
}

TEST_F(ServeTest, RowsThatOnlyTheServerComputesComeBack) {
  start();
  const ServedGraph model(chain_of_layers(20, 3));
  auto robot = client();
  upload(*robot, model);
  robot->send(model.divide(1, 1, 5));
  robot->expect<wire::Divided>();
  const auto input = model.input(3);
  robot->send(wire::Run{1, 1, 1, 0});
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kTensor;
  header.id = 1;
  header.rows_end = 5;
  header.message_bytes = static_cast<std::uint32_t>(input.size() / 4);
  robot->send(header, {input.begin(), input.begin() + static_cast<std::ptrdiff_t>(input.size() / 4)});
  auto expected = model.expected(input);
  expected.resize(expected.size() / 4);
  EXPECT_EQ(answer(*robot, 1), expected);
}

TEST_F(ServeTest, AnUnknownDivisionIsAMismatch) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  robot->send(wire::Run{1, 1, 99, 0});
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kMismatch);
  EXPECT_EQ(failed.inference, 1u);
  divide(*robot, model, 99);
  begin(*robot, model, 2, 99, model.input(1));
  EXPECT_EQ(answer(*robot, 2), model.expected(model.input(1)));
}

TEST_F(ServeTest, RowsOfAnUnknownDivisionCostNothingElse) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  begin(*robot, model, 1, 99, model.input(1));
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kMismatch);
  divide(*robot, model, 99);
  begin(*robot, model, 2, 99, model.input(1));
  EXPECT_EQ(answer(*robot, 2), model.expected(model.input(1)));
  EXPECT_EQ(server_->counts().workers_lost, 0u);
}

TEST_F(ServeTest, RunningInTheSameBreathAsDividingIsAnsweredEitherWay) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  robot->send(model.divide(1, 5));
  begin(*robot, model, 1, 5, model.input(1));
  robot->expect<wire::Divided>();
  try {
    EXPECT_EQ(answer(*robot, 1), model.expected(model.input(1)));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
  }
  begin(*robot, model, 2, 5, model.input(2));
  EXPECT_EQ(answer(*robot, 2), model.expected(model.input(2)));
}

TEST_F(ServeTest, NobodyWaitsForWhatNobodyWants) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  robot->send(wire::Run{1, 1, 1, 50'000});  // and no rows
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kTimeout);
  EXPECT_EQ(failed.inference, 1u);
}

TEST_F(ServeTest, ACancelledInferenceLeavesTheQueue) {
  options_.device = "1";
  start();
  const ServedGraph model(chain_of_layers(4, 2, 1.0));
  auto first = client();
  auto second = client();
  for (const auto& robot : {first.get(), second.get()}) {
    upload(*robot, model);
    divide(*robot, model, 1);
  }
  begin(*first, model, 1, 1, model.input(1));
  while (server_->counts().bytes_in == 0 || first->queued() > 0) std::this_thread::yield();
  begin(*second, model, 1, 1, model.input(1));
  while (server_->counts().waiting_inferences == 0) std::this_thread::yield();
  second->send(wire::Cancel{1});
  second->expect<wire::Done>();  // before the first one's
  EXPECT_EQ(server_->counts().inferences, 1u);
}

TEST_F(ServeTest, ADivisionThatDoesNotFitIsAnErrorOfTheModelAlone) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  wire::Divide wrong = model.divide(1, 1);
  wrong.plan.shares.pop_back();
  robot->send(wrong);
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kInvalidArgument);
  divide(*robot, model, 2);
}

TEST_F(ServeTest, ACancelledInferenceEnds) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  robot->send(wire::Run{1, 1, 1, 0});
  robot->send(wire::Cancel{1});
  robot->expect<wire::Done>();
  send_input(*robot, model, 1, model.input(1));  // too late, and dropped
  begin(*robot, model, 2, 1, model.input(2));
  EXPECT_EQ(answer(*robot, 2), model.expected(model.input(2)));
}

TEST_F(ServeTest, AcknowledgementsDuringAnInferenceChangeNothing) {
  start();
  const ServedGraph model(chain_of_layers(20, 3));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  for (std::uint64_t inference = 1; inference <= 3; ++inference) {
    const auto input = model.input(inference);
    robot->send(wire::Run{1, inference, 1, 0});
    wire::Ack ack;
    ack.inference = inference;
    robot->send(ack);
    send_input(*robot, model, inference, input);
    ASSERT_EQ(answer(*robot, inference), model.expected(input)) << inference;
  }
}

TEST_F(ServeTest, TurnsAreTakenAndTold) {
  options_.device = "1";  // layers take their time
  start();
  const ServedGraph model(chain_of_layers(4, 2, 0.2));
  std::vector<std::unique_ptr<RawClient>> robots;
  for (int i = 0; i < 3; ++i) {
    robots.push_back(client());
    upload(*robots.back(), model);
    divide(*robots.back(), model, 1);
  }
  for (const auto& robot : robots) begin(*robot, model, 1, 1, model.input(1));
  int queued = 0;
  for (const auto& robot : robots) {
    while (const auto received = robot->next()) {
      if (received->header.kind != wire::FrameKind::kControl) continue;
      const wire::Message message = wire::decode(received->payload);
      queued += std::holds_alternative<wire::Queued>(message) ? 1 : 0;
      if (std::holds_alternative<wire::Done>(message)) break;
    }
  }
  EXPECT_GE(queued, 2);
  EXPECT_GT(server_->counts().waited_seconds, 0.2);
}

TEST_F(ServeTest, OthersAreToldHowBusyItIs) {
  options_.device = "1";
  start();
  const ServedGraph model(chain_of_layers(4, 2, 0.2));
  auto robot = client();
  auto other = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  begin(*robot, model, 1, 1, model.input(1));
  const auto done = robot->expect<wire::Done>();
  EXPECT_EQ(done.load, (wire::Load{1, 0, 0, 0})) << "there are no others";
  other->send(wire::Ping{1});
  const wire::Load told = other->expect<wire::Pong>().load;
  EXPECT_EQ(told.turns, 1u);
  EXPECT_GT(told.computing, 0);
  EXPECT_GE(told.turn_us, 100'000u);
  robot->send(wire::Ping{2});
  EXPECT_EQ(robot->expect<wire::Pong>().load, (wire::Load{1, 0, 0, 0}));
}

// Proves I-9.
TEST_F(ServeTest, AWorkerThatDiesIsItsClientsLossAlone) {
  options_.device = "crash";
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  auto other = client();
  upload(*robot, model);
  upload(*other, model);
  divide(*robot, model, 1);
  divide(*other, model, 1);
  begin(*robot, model, 1, 1, model.input(1));
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.inference, 1u);  // reported for the inference first, then for the model
  EXPECT_THAT(failed.text, HasSubstr("Aborted"));
  EXPECT_EQ(robot->expect<wire::Failed>().inference, 0u);
  robot->send(wire::Run{1, 2, 1, 0});
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kUnavailable);
  divide(*other, model, 2);  // still there
  robot->send(wire::Close{1});
  upload(*robot, model, 2);  // and again
  EXPECT_EQ(server_->counts().workers_lost, 1u);
}

TEST_F(ServeTest, WorkersAreToldNoSecrets) {
  const std::string told = folder_ + "/environment";
  options_.worker_program = folder_ + "/worker";
  std::ofstream(options_.worker_program) << "#!/bin/sh\nenv > '" << told << "'\n";
  ASSERT_EQ(::chmod(options_.worker_program.c_str(), 0700), 0);
  ::setenv("PASSWORD_OF_TESTS", "secret", 1);
  ::setenv("OMP_OF_TESTS", "threads", 1);
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  robot->send(model.open(1));
  send_missing(*robot, model, 1, robot->expect<wire::Need>());
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kUnavailable);
  ::unsetenv("PASSWORD_OF_TESTS");
  ::unsetenv("OMP_OF_TESTS");
  std::ifstream file(told);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("OMP_OF_TESTS=threads"));
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
}

TEST_F(ServeTest, AWorkerThatBabblesIsEnded) {
  options_.device = "babble";
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  begin(*robot, model, 1, 1, model.input(1));
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kProtocol);
  EXPECT_EQ(robot->expect<wire::Failed>().inference, 0u);
  EXPECT_EQ(server_->counts().workers, 0u);
}

TEST_F(ServeTest, EndlessComputingIsEnded) {
  options_.device = "spin";
  options_.compute_limit = 200ms;
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  begin(*robot, model, 1, 1, model.input(1));
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kTimeout);
}

TEST_F(ServeTest, ProbesAreAcknowledged) {
  start();
  auto robot = client();
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kProbe;
  header.id = 17;
  header.message_bytes = 3000;
  robot->send(header, std::vector<std::byte>(1000));
  header.offset = 1000;
  robot->send(header, std::vector<std::byte>(2000));
  const auto received = robot->next();
  ASSERT_TRUE(received);
  const wire::Message message = wire::decode(received->payload);
  ASSERT_TRUE(std::holds_alternative<wire::Ack>(message));
  EXPECT_EQ(std::get<wire::Ack>(message).bytes, 3000u);
  EXPECT_EQ(std::get<wire::Ack>(message).first_bytes, 1000u);
}

TEST_F(ServeTest, DrainingFinishesWhatRuns) {
  options_.device = "1";
  start();
  const ServedGraph model(chain_of_layers(4, 2, 1.0));
  auto robot = client();
  upload(*robot, model);
  divide(*robot, model, 1);
  begin(*robot, model, 1, 1, model.input(1));
  robot->send(wire::Ping{1});
  robot->expect<wire::Pong>();  // so it has started
  bool is_drained = false;
  std::thread drain([&] { is_drained = server_->drain(Deadline::after(30s)); });
  robot->expect<wire::Draining>();
  robot->send(wire::Run{1, 2, 1, 0});
  EXPECT_EQ(robot->expect<wire::Failed>().inference, 2u);
  robot->expect<wire::Done>();
  drain.join();
  EXPECT_TRUE(is_drained);
}

TEST_F(ServeTest, FiftyRobotsAtOnce) {
  start();
  const ServedGraph model(chain_of_layers(8, 3));
  std::vector<std::unique_ptr<RawClient>> robots;
  robots.push_back(client());
  robots.front()->send(model.open(1));
  const auto need = robots.front()->expect<wire::Need>();  // the others wait for its upload
  for (int i = 1; i < 50; ++i) {
    robots.push_back(client());
    robots.back()->send(model.open(1));
  }
  send_missing(*robots.front(), model, 1, need);
  for (const auto& robot : robots) robot->expect<wire::Ready>();
  for (const auto& robot : robots) divide(*robot, model, 1);
  for (std::uint64_t inference = 1; inference <= 3; ++inference) {
    for (std::size_t i = 0; i < robots.size(); ++i) begin(*robots[i], model, inference, 1, model.input(i));
    for (std::size_t i = 0; i < robots.size(); ++i)
      ASSERT_EQ(answer(*robots[i], inference), model.expected(model.input(i)));
  }
  EXPECT_EQ(server_->counts().inferences, 150u);
}

}  // namespace
}  // namespace atl::infer::test
