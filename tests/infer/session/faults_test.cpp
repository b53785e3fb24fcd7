// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"
#include "tests/support/peers.h"
#include "tests/support/relay.h"

// A session whose server or link fails: every answer is there and right.
namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::ScriptedServer;
using test::SessionTest;
using Script = ScriptedServer::Script;

// Generous, for a busy machine.
constexpr double kSlack = 5.0;

class SessionFaults : public SessionTest {
 protected:
  // Faults from the beginning, and faults once the session is ready.
  void survives(const Script& script) {
    for (const bool from_the_start : {true, false}) {
      ScriptedServer server(credentials_);
      if (from_the_start) server.set(script);
      SessionOptions given = options(server.address());
      given.server->silence = 400ms;
      const auto session = this->session(given);
      if (!from_the_start) {
        ASSERT_TRUE(wait(*session)) << session->report().json();
        server.set(script);
      }
      for (std::uint64_t i = 0; i < 6; ++i) {
        const Outcome outcome = run(*session, i);
        ASSERT_LT(outcome.seconds, kSlack) << session->report().json();
      }
      server.set({});
      ASSERT_TRUE(wait(*session)) << session->report().json();
      run(*session, 7);
    }
  }
};

class DyingServer : public SessionFaults, public testing::WithParamInterface<const char*> {};

// Proves I-2.
TEST_P(DyingServer, Survives) { survives({.dies_at = GetParam()}); }
TEST_P(DyingServer, SurvivesSilence) { survives({.silent_at = GetParam()}); }
TEST_P(DyingServer, SurvivesGarbage) { survives({.garbage_at = GetParam()}); }
TEST_P(DyingServer, SurvivesDraining) { survives({.drains_at = GetParam(), .times = 1}); }

INSTANTIATE_TEST_SUITE_P(AtEveryMessage, DyingServer,
                         testing::Values("Hello", "Open", "GraphText", "Weights", "Divide", "Run", "Tensor", "Ack",
                                         "Ping"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(SessionFaults, RefusedDivisionsAreNotUsed) { survives({.refuses_divisions = true, .times = 3}); }
TEST_F(SessionFaults, UnknownDivisionsAreToldAgain) { survives({.refuses_runs = true, .times = 2}); }
TEST_F(SessionFaults, RowsThatComeTwiceEndTheLink) { survives({.answers_twice = true, .times = 2}); }
TEST_F(SessionFaults, RowsOfAnotherSizeEndTheLink) { survives({.answers_short = true, .times = 2}); }

TEST_F(SessionFaults, AServerThatNeverAnswersCostsTheGuardOnly) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()));
  ASSERT_TRUE(wait(*session));
  run(*session, 1);
  server.set({.is_stuck = true});
  int guarded = 0;
  for (std::uint64_t i = 2; i < 8; ++i) {
    const Outcome outcome = run(*session, i);
    EXPECT_NE(outcome.origin, Origin::kServer);
    EXPECT_LT(outcome.seconds, 2 * 0.03 + kSlack);
    guarded += outcome.guard_used ? 1 : 0;
  }
  EXPECT_GE(guarded, 1);
  // One inference at a time: the next ones are local until it is over.
  EXPECT_EQ(server.count("Run"), 2);
  EXPECT_EQ(session->report().link.state, LinkState::kReady);
}

// Proves I-3.
TEST_F(SessionFaults, DeadlinesAreKeptWhileTheServerIsStuck) {
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  server.set({.is_stuck = true});
  const Outcome outcome = run(*session, 1, 0.3s);
  EXPECT_TRUE(outcome.guard_used);
  EXPECT_GT(outcome.seconds, 0.2) << "it waits as long as it can";
  EXPECT_LT(outcome.seconds, 0.3 + kSlack);
  const Outcome hopeless = run(*session, 2, 0.001s);
  EXPECT_TRUE(hopeless.missed);
  EXPECT_GE(session->report().missed, 1U);
}

TEST_F(SessionFaults, AlwaysHedgingWaitsForNobody) {
  ScriptedServer server(credentials_);
  SessionOptions given = options(server.address());
  given.policy = "offload";
  given.hedge = Hedge::kAlways;
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  server.set({.is_stuck = true});
  const Outcome outcome = run(*session, 1);
  EXPECT_TRUE(outcome.guard_used);
  EXPECT_EQ(outcome.origin, Origin::kLocal);
}

TEST_F(SessionFaults, AnAnswerThatComesBeforeTheOwnOneIsTaken) {
  use(test::layers_of(0.6));
  ScriptedServer server(credentials_, 0.04);  // 6 ms times 25
  SessionOptions given = options(server.address());
  given.policy = "offload";
  given.hedge = Hedge::kAlways;
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  int from_server = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Outcome outcome = run(*session, i);
    EXPECT_TRUE(outcome.guard_used || outcome.plan == "local");
    from_server += outcome.origin == Origin::kServer ? 1 : 0;
  }
  EXPECT_GE(from_server, 2) << session->report().json();
}

TEST_F(SessionFaults, NobodyListens) {
  std::string address;
  {
    const ScriptedServer server(credentials_);
    address = server.address();
  }
  const auto session = this->session(options(address));
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(run(*session, i).origin, Origin::kLocal);
  EXPECT_FALSE(session->wait_until_ready(Deadline::after(100ms)));
  atl::test::wait_until("a lost link", [&] { return session->report().link.state == LinkState::kLost; });
}

TEST_F(SessionFaults, AServerWithAnotherKeyIsRefused) {
  ScriptedServer server(transport::Credentials::of_key(as_byte_span("another key of 16 or more bytes")));
  const auto session = this->session(options(server.address()));
  EXPECT_THROW(session->wait_until_ready(Deadline::after(20s)), Error);
  EXPECT_EQ(run(*session, 1).origin, Origin::kLocal);
  atl::test::wait_until("the key", [&] { return session->report().link.text.find("key") != std::string::npos; });
}

// The link is cut, reset, stalled and shaped while inferences run.
// Proves I-2.
TEST_F(SessionFaults, AnyLinkGivesRightAnswers) {
  ScriptedServer server(credentials_);
  atl::test::Relay relay(server.address());
  SessionOptions given = options(relay.address());
  given.deadline = 0.1s;
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  test::Dice dice(41);
  std::atomic<bool> is_over = false;
  std::thread weather([&] {
    while (!is_over) {
      switch (dice.integer(0, 4)) {
        case 0: relay.cut(atl::test::Relay::Cut::kEnd); break;
        case 1: relay.cut(atl::test::Relay::Cut::kReset); break;
        case 2: relay.stall(); break;
        case 3: relay.resume(); break;
        default: relay.set_path({dice.real(2e4, 2e7), std::chrono::microseconds(dice.integer(0, 5000)), false}); break;
      }
      const auto until = Deadline::after(std::chrono::milliseconds(dice.integer(1, 120)));
      while (!until.expired() && !is_over) std::this_thread::yield();
    }
  });
  for (std::uint64_t i = 0; i < 60; ++i) {
    const Outcome outcome = run(*session, i);
    EXPECT_LT(outcome.seconds, 0.1 + kSlack) << session->report().json();
  }
  is_over = true;
  weather.join();
  relay.resume();
  relay.set_path({});
  ASSERT_TRUE(wait(*session)) << session->report().json();
}

}  // namespace
}  // namespace atl::infer
