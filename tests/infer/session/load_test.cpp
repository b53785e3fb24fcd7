// SPDX-License-Identifier: Apache-2.0
// Sessions and servers that are busy, late, too small, or make others wait.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::ScriptedServer;

class SessionLoad : public test::SessionTest {
 protected:
  /// Runs inferences until one satisfies the condition; false if none does for a long time.
  template <typename Holds>
  bool runs_until(Session& session, const Holds& holds) {
    const auto limit = Deadline::after(20s);
    while (!limit.expired()) {
      if (holds(run(session, seed_++))) return true;
    }
    return false;
  }
  std::uint64_t seed_ = 0;
};

TEST_F(SessionLoad, ABusyServerShiftsWorkToTheRobotUntilItIsIdleAgain) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  const auto is_split = [](const Outcome& outcome) { return outcome.plan != "local"; };
  EXPECT_TRUE(runs_until(*session, is_split));
  EXPECT_EQ(session->report().expected_wait, 0);
  server.set({.load = {1, 1, 20, 1'000'000}});
  EXPECT_TRUE(runs_until(*session, [&](const Outcome&) { return session->report().expected_wait > 5; }));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(run(*session, seed_++).plan, "local") << session->report().json();
  server.set({.load = {1, 0, 0, 1'000'000}});
  EXPECT_TRUE(runs_until(*session, is_split)) << "the session learns it although it sends nothing";
}

TEST_F(SessionLoad, ALateAnswerIsNoFaultOfTheServer) {
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  server.set({.is_late = true});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(run(*session, seed_++, 10s).origin, Origin::kLocal);
  EXPECT_EQ(server.count("Run"), 6) << "it is used again at once";
  EXPECT_EQ(session->report().link.connections, 1U);
}

/// Computes nothing until it may.
class Held : public test::ModelledRunner {
 public:
  Held() : ModelledRunner(test::Machine::kRobot, 0) {}
  std::vector<Value> run(const Call& call, std::span<const Value> operands, std::span<const Change> changes) override {
    for (const auto limit = Deadline::after(20s); !may_run() && !limit.expired();) std::this_thread::yield();
    return ModelledRunner::run(call, operands, changes);
  }
  std::function<bool()> may_run;
};

TEST_F(SessionLoad, AServerThatEndsTheModelIsReportedOnceEvenIfItRunsItAgain) {
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  const auto runner = std::make_shared<Held>();
  Session session(given, bundle(), runner);
  runner->may_run = [&] { return server.count("Open") > 1 && !session.refusal(); };
  ASSERT_TRUE(wait(session));
  server.set({.is_overrun = true});
  const Outcome slow = run(session, seed_++);
  EXPECT_EQ(slow.origin, Origin::kLocal);
  EXPECT_NE(slow.refusal.find("does not run the model: it has computed for longer"), std::string::npos) << slow.refusal;
  server.set({});
  EXPECT_EQ(run(session, seed_++).refusal, "");
}

TEST_F(SessionLoad, AModelThatIsTooLargeIsTriedAgain) {
  use(test::layers_of(0.03), 1000);
  ScriptedServer server(credentials_);
  server.set({.most_model_bytes = 500});
  SessionOptions given = options(server.address());
  given.server->ask_again = 50ms;
  const auto session = this->session(given);
  EXPECT_TRUE(runs_until(*session, [&](const Outcome&) {
    const LinkStatus link = session->report().link;
    return link.state == LinkState::kRefused && link.text.find("for one model") != std::string::npos;
  })) << session->report().json();
  EXPECT_EQ(server.count("Open"), 0);
  server.set({});
  ASSERT_TRUE(wait(*session)) << session->report().json();
  EXPECT_GE(session->report().link.connections, 2U);
}

TEST_F(SessionLoad, TheDeadlineCountsFromWhenItWasAskedFor) {
  const auto session = this->session(options(""), 0);
  const std::vector<std::byte> given = input(1);
  const HostBytes bytes{given, nullptr};
  const Outcome late = session->run({&bytes, 1}, 10s, Clock::now() - 20s);
  EXPECT_TRUE(late.missed);
  EXPECT_GE(late.seconds, 20);
  EXPECT_LT(late.times.computing, 20) << "it waited elsewhere";
  const Outcome in_time = session->run({&bytes, 1}, 1000s, Clock::now() - 20s);
  EXPECT_FALSE(in_time.missed);
}

// A robot never draws more than when it computes all the time.
TEST_F(SessionLoad, WhatWaitsForItsTurnDrawsNothing) {
  const auto session = this->session(options(""));
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> callers;
  for (std::uint64_t caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] { run(*session, caller); });
  }
  for (std::thread& each : callers) each.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const SessionReport report = session->report();
  EXPECT_EQ(report.inferences, 6U);
  EXPECT_LE(report.joules, plan::RobotPower{}.compute_watts * seconds);
  EXPECT_GE(report.times.computing, 6 * 0.03);
}

TEST_F(SessionLoad, WhatWaitsForTheServerComputesNothing) {
  use(test::layers_of(0.2));
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  server.set({.is_stuck = true});
  const Outcome first = run(*session, 1, 1s);
  EXPECT_TRUE(first.guard_used);
  EXPECT_GT(first.times.waiting, 0.5);
  EXPECT_NEAR(first.times.computing + first.times.waiting, first.seconds, 1e-6);
  EXPECT_GT(first.times.sending, 0);
  EXPECT_EQ(first.times.receiving, 0);
  const Outcome second = run(*session, 2, 10s);
  EXPECT_EQ(second.plan, "local");
  EXPECT_GE(second.times.waiting, 0.0199) << "for the end of the one before";
  EXPECT_NEAR(second.joules, 13.35 * second.times.computing + 4.04 * second.times.waiting, 1e-9);
}

// An inference that the server has not ended delays the next one, which still is not computed here for that reason.
TEST_F(SessionLoad, WithoutHedgingTheEndOfTheLastInferenceIsWaitedFor) {
  ScriptedServer server(credentials_);
  const auto session = this->session(patient(server.address(), 30s));
  ASSERT_TRUE(wait(*session));
  server.set({.ends_later = 100ms});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(*session, seed_++).origin, Origin::kServer) << session->report().json();
  EXPECT_EQ(server.count("Run"), 4);
}

TEST_F(SessionLoad, WithoutHedgingPatienceMayBeShorterThanTheModel) {
  use(test::layers_of(30));
  ScriptedServer server(credentials_, 1);  // 0.3 s, in which the robot would have answered
  const auto session = this->session(patient(server.address(), 10s), 0);
  ASSERT_TRUE(wait(*session));
  server.set({.ends_later = 20ms});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(*session, seed_++).origin, Origin::kServer) << session->report().json();
}

TEST_F(SessionLoad, WithoutHedgingPatienceIsSpentOnce) {
  ScriptedServer server(credentials_);
  const auto session = this->session(patient(server.address(), 2s));
  ASSERT_TRUE(wait(*session));
  server.set({.is_stuck = true});
  EXPECT_GT(run(*session, seed_++).times.waiting, 1.5);
  for (int i = 0; i < 3; ++i) EXPECT_LT(run(*session, seed_++).times.waiting, 1.5) << session->report().json();
  EXPECT_EQ(server.count("Run"), 1);
}

}  // namespace
}  // namespace atl::infer
