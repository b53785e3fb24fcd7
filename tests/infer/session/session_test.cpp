// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "atoll/core/deadline.h"
#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;
using test::ScriptedServer;
using test::SessionTest;

TEST_F(SessionTest, WithoutAServerEverythingIsLocal) {
  const auto session = this->session(options(""));
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Outcome outcome = run(*session, i);
    EXPECT_EQ(outcome.origin, Origin::kLocal);
    EXPECT_EQ(outcome.plan, "local");
    EXPECT_EQ(outcome.up_bytes, 0U);
    EXPECT_FALSE(outcome.missed);
    EXPECT_GE(outcome.seconds, 0.03);
    EXPECT_GE(outcome.predicted, 0.03 * 0.999);
    EXPECT_NEAR(outcome.joules, 13.35 * outcome.seconds, 1e-6);
  }
  EXPECT_FALSE(session->wait_until_ready(Deadline::after(0s)));
  EXPECT_EQ(session->report().origins[0], 3U);
}

TEST_F(SessionTest, ADeadlineIsANumber) {
  const auto session = this->session(options(""));
  const std::chrono::duration<double> none(std::numeric_limits<double>::quiet_NaN());
  const std::string text = failure(ErrorKind::kInvalidArgument, [&] { run(*session, 1, none); });
  EXPECT_NE(text.find("not a number"), std::string::npos);
}

TEST_F(SessionTest, AnswersFromAServerAreTheSame) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  std::array<int, 3> origins{};
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Outcome outcome = run(*session, i);
    ++origins.at(static_cast<std::size_t>(outcome.origin));
    if (outcome.origin == Origin::kServer) {
      EXPECT_GT(outcome.up_bytes, 0U);
      EXPECT_GT(outcome.down_bytes, 0U);
      EXPECT_GT(outcome.bound, 0);
      EXPECT_LE(outcome.bound, outcome.predicted * 1.01);
    }
  }
  EXPECT_GT(origins[1], 10) << session->report().json();
}

TEST_F(SessionTest, EveryPolicyGivesTheSame) {
  ScriptedServer server(credentials_);
  for (const std::string& policy : plan::operator_policies()) {
    for (std::uint64_t seed = 0; seed < (policy == "random" ? 8U : 1U); ++seed) {
      SessionOptions given = options(server.address());
      given.policy = policy;
      given.seed = seed;
      given.hedge = Hedge::kNever;
      const auto session = this->session(given, 10);
      if (policy != "local") {
        ASSERT_TRUE(wait(*session)) << policy << ": " << session->report().json();
      }
      for (std::uint64_t i = 0; i < 4; ++i) run(*session, i);
    }
  }
}

TEST_F(SessionTest, UploadsGoOnWhereTheyStopped) {
  use(test::layers_of(0.03), 3'000'000);
  ScriptedServer server(credentials_);
  server.set({.dies_at = "Weights", .times = 1});
  const auto session = this->session(options(server.address()));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  EXPECT_GE(server.weight_bytes(), weights_.size());
  EXPECT_LT(server.weight_bytes(), weights_.size() + 200'000);
  EXPECT_GE(session->report().link.connections, 2U);
  run(*session, 1);
}

TEST_F(SessionTest, AnotherServerOnTheSameAddressIsToldEverything) {
  auto server = std::make_unique<ScriptedServer>(credentials_);
  const std::uint16_t port = server->port();
  const auto session = this->session(options(server->address()));
  ASSERT_TRUE(wait(*session));
  run(*session, 1);
  server.reset();
  run(*session, 2);
  server = std::make_unique<ScriptedServer>(credentials_, 0, port);
  ASSERT_TRUE(wait(*session)) << session->report().json();
  int from_server = 0;
  for (std::uint64_t i = 3; i < 13; ++i) from_server += run(*session, i).origin == Origin::kServer ? 1 : 0;
  EXPECT_GT(from_server, 0);
}

TEST_F(SessionTest, ManyCallersTakeTurns) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()), 10);
  ASSERT_TRUE(wait(*session));
  std::vector<std::thread> callers;
  for (std::uint64_t caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::uint64_t i = 0; i < 10; ++i) {
        run(*session, 100 * caller + i);
        static_cast<void>(session->report().json());
      }
    });
  }
  for (std::thread& each : callers) each.join();
  EXPECT_EQ(session->report().inferences, 60U);
}

TEST_F(SessionTest, LeavesNoThreadBehind) {
  std::thread([] {}).join();  // a sanitizer starts its own thread with the first one
  const std::size_t before = test::threads();
  {
    ScriptedServer server(credentials_);
    for (int i = 0; i < 5; ++i) {
      const auto session = this->session(options(server.address()));
      if (i % 2 == 0) {
        ASSERT_TRUE(wait(*session));
      }
      run(*session, 1);
    }
  }
  // A joined thread may still be listed for a moment.
  const auto limit = Deadline::after(std::chrono::seconds(10));
  while (test::threads() > before && !limit.expired()) std::this_thread::yield();
  EXPECT_LE(test::threads(), before);
}

TEST_F(SessionTest, ReportsInJson) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()));
  ASSERT_TRUE(wait(*session));
  for (std::uint64_t i = 0; i < 5; ++i) run(*session, i);
  const auto json = nlohmann::json::parse(session->report().json());
  EXPECT_EQ(json["inferences"], 5);
  EXPECT_EQ(json["latencies"].size(), 5U);
  EXPECT_EQ(json["link"]["state"], "ready");
  EXPECT_EQ(json["server"], "scripted");
  EXPECT_GE(json["p99"].get<double>(), json["p50"].get<double>());
  EXPECT_GT(json["joules"].get<double>(), 0);
  EXPECT_GT(json["link"]["probe_bytes"].get<int>(), 0);
  EXPECT_EQ(
      json["origins"]["local"].get<int>() + json["origins"]["server"].get<int>() + json["origins"]["mixed"].get<int>(),
      5);
}

TEST_F(SessionTest, RefusesWhatDoesNotFit) {
  const auto session = this->session(options(""));
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { session->run({}); }).find("1 inputs"), std::string::npos);
  const std::vector<std::byte> few(3);
  const HostBytes bytes{few, nullptr};
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { session->run({&bytes, 1}); }), "");
  SessionOptions wrong = options("");
  wrong.policy = "best";
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { this->session(wrong); }).find("auto"), std::string::npos);
  wrong = options("nowhere");
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { this->session(wrong); }), "");
  SessionOptions hasty = options("");
  for (const double patience : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    hasty.patience = std::chrono::duration<double>(patience);
    EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { this->session(hasty); }).find("patience"), std::string::npos);
  }
}

class Doubling : public LocalEngine {
 public:
  explicit Doubling(const Bundle& bundle)
      : runner_(std::make_shared<test::ModelledRunner>(test::Machine::kRobot, 0)),
        model_(bundle.graph, bundle.weights, runner_),
        operators_(operators_of(model_.graph(), -1, -1)) {}
  std::vector<Value> run(std::span<const Value> inputs) override {
    ++calls;
    Inference inference(model_, operators_);
    inference.set_input(model_.graph().inputs.front(), inputs.front());
    std::vector<std::vector<Region>> held(model_.graph().tensors.size());
    held[static_cast<std::size_t>(model_.graph().inputs.front())] = {{0, 1}};
    inference.run(rest_of(model_.graph(), operators_, held), no_exchange());
    return {inference.whole(std::get<TensorId>(model_.graph().outputs.front()).id)};
  }
  int calls = 0;

 private:
  std::shared_ptr<test::ModelledRunner> runner_;
  LoadedModel model_;
  Operators operators_;
};

TEST_F(SessionTest, ItsOwnEngineReplacesLocalComputing) {
  use(test::layers_of(2));  // seconds, because a busy machine may delay the engine
  const auto engine = std::make_shared<Doubling>(bundle());
  Session session(options(""), bundle(), std::make_shared<test::ModelledRunner>(test::Machine::kRobot, 100), engine);
  const int before = engine->calls;
  EXPECT_GT(before, 1) << "it is measured";
  const Outcome outcome = run(session, 4);
  EXPECT_EQ(engine->calls, before + 1);
  EXPECT_LT(outcome.predicted, 1);
}

TEST_F(SessionTest, ItsOwnEngineMovesTheLastMoment) {
  use(test::layers_of(0.4));
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  const auto engine = std::make_shared<Doubling>(bundle());
  Session session(given, bundle(), std::make_shared<test::ModelledRunner>(test::Machine::kRobot, 1), engine);
  ASSERT_TRUE(wait(session)) << session.report().json();
  server.set({.is_stuck = true});
  const int before = engine->calls;
  const Outcome outcome = run(session, 4, 1s);
  EXPECT_TRUE(outcome.guard_used);
  EXPECT_EQ(engine->calls, before + 1);
  EXPECT_GT(outcome.seconds, 0.8) << "operator by operator it would have started after 0.6 s";
}

}  // namespace
}  // namespace atl::infer
