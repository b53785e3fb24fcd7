// SPDX-License-Identifier: Apache-2.0
// Servers that will never answer, and servers that may still do so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;
using test::ScriptedServer;
using testing::HasSubstr;

struct Refusing {
  std::string name;
  ScriptedServer::Script script;
  std::string text;
  bool has_other_key = false;
};
std::ostream& operator<<(std::ostream& out, const Refusing& each) { return out << each.name; }

std::vector<Refusing> refusing() {
  std::vector<Refusing> all;
  for (const ErrorKind kind :
       {ErrorKind::kRefused, ErrorKind::kMismatch, ErrorKind::kProtocol, ErrorKind::kInvalidArgument}) {
    all.push_back(
        {std::string("Model_") + to_string(kind), {.refuses_models = kind}, "does not run the model: not this"});
  }
  all.push_back({"OtherRules", {.rules = kRulesVersion + 1}, "install the same release on both"});
  all.push_back({"TooLarge", {.most_model_bytes = 1}, "at most 0 MB for one model"});
  all.push_back({"Divisions", {.refuses_divisions = true}, "it refuses every division of the model: no"});
  all.push_back({"OtherKey", {}, "copy of the server's key file (atoll serve --key-file)", true});
  return all;
}

class SessionRefusals : public test::SessionTest {
 protected:
  std::unique_ptr<Session> refused(const Refusing& by, Hedge hedge) {
    server_ = std::make_unique<ScriptedServer>(
        by.has_other_key ? transport::Credentials::of_key(as_byte_span("another key of 16 or more bytes"))
                         : credentials_);
    server_->set(by.script);
    SessionOptions given = patient(server_->address(), 1000s);
    given.hedge = hedge;
    return session(given);
  }

  std::unique_ptr<ScriptedServer> server_;
};

class FinalRefusal : public SessionRefusals, public testing::WithParamInterface<Refusing> {};

// Proves I-4.
TEST_P(FinalRefusal, EndsTheWaitAtOnce) {
  const auto session = refused(GetParam(), Hedge::kDeadline);
  const auto begin = Clock::now();
  const auto wait = [&] { session->wait_until_ready(Deadline::after(1000s)); };
  EXPECT_THAT(failure(ErrorKind::kRefused, wait), HasSubstr(GetParam().text));
  EXPECT_LT(Clock::now() - begin, 20s);
  const auto refusal = session->refusal();
  ASSERT_TRUE(refusal);
  EXPECT_TRUE(refusal->is_final);
  EXPECT_THAT(session->report().link.refusal, HasSubstr(GetParam().text));
  EXPECT_EQ(run(*session, 1).origin, Origin::kLocal) << "only Hedge::kNever throws";
}

TEST_P(FinalRefusal, EndsCallsThatInsistOnTheServer) {
  const auto session = refused(GetParam(), Hedge::kNever);
  EXPECT_THROW(session->wait_until_ready(Deadline::after(1000s)), Error);
  EXPECT_THAT(failure(ErrorKind::kRefused, [&] { run(*session, 1); }), HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(OfEachKind, FinalRefusal, testing::ValuesIn(refusing()),
                         [](const auto& each) { return each.param.name; });

TEST_F(SessionRefusals, WhatMayPassIsWaitedFor) {
  for (const ErrorKind kind : {ErrorKind::kUnavailable, ErrorKind::kTimeout, ErrorKind::kInternal}) {
    const auto session = refused({"", {.refuses_models = kind}, ""}, Hedge::kNever);
    const auto limit = Deadline::after(20s);
    while (!session->refusal() && !limit.expired()) EXPECT_FALSE(session->wait_until_ready(Deadline::after(1ms)));
    ASSERT_TRUE(session->refusal()) << to_string(kind);
    EXPECT_FALSE(session->refusal()->is_final);
    EXPECT_EQ(run(*session, 1).origin, Origin::kLocal);
    server_->set({});
    EXPECT_TRUE(wait(*session)) << session->report().json();
    EXPECT_FALSE(session->refusal());
  }
}

TEST_F(SessionRefusals, AKeyThatIsPutRightEndsTheRefusal) {
  const auto session = refused({"", {}, "", true}, Hedge::kNever);
  EXPECT_THROW(session->wait_until_ready(Deadline::after(1000s)), Error);
  const std::uint16_t port = server_->port();
  server_.reset();
  server_ = std::make_unique<ScriptedServer>(credentials_, 0, port);
  ASSERT_TRUE(wait(*session)) << session->report().json();
  EXPECT_FALSE(session->refusal());
  EXPECT_EQ(run(*session, 1).origin, Origin::kServer);
}

TEST_F(SessionRefusals, WithoutAServerNobodyRefuses) {
  const auto alone = session(options(""));
  EXPECT_FALSE(alone->wait_until_ready(Deadline::after(1000s)));
  EXPECT_FALSE(alone->refusal());
}

// The check that the thread of a call makes.
class CallersCheck : public test::SessionTest {
 protected:
  struct Signal {};
  static void raise() { throw Signal(); }
};

TEST_F(CallersCheck, EndsTheWaitForAServer) {
  SessionOptions given = options("127.0.0.1:1");
  given.check = raise;
  const auto waiting = session(given);
  EXPECT_THROW(waiting->wait_until_ready(Deadline::after(1000s)), Signal);
}

TEST_F(CallersCheck, EndsMeasuring) {
  SessionOptions given = options("");
  given.profile.reset();
  given.profile_time = 1000s;
  given.check = raise;
  EXPECT_THROW(session(given), Signal);
}

TEST_F(CallersCheck, EndsAnInferenceAndNotTheSession) {
  use(test::layers_of(1000));
  SessionOptions given = options("");
  bool signals = true;
  given.check = [&signals] {
    if (signals) throw Signal();
  };
  const auto computing = session(given, 1);
  EXPECT_THROW(run(*computing, 1), Signal);
  EXPECT_THROW(run(*computing, 1), Signal) << "the session is not closed, and no call has the turn";
}

TEST_F(CallersCheck, EndsTheWaitForASilentServer) {
  ScriptedServer server(credentials_);
  SessionOptions given = patient(server.address(), 1000s);
  std::atomic<bool> signals = false;
  given.check = [&signals] {
    if (signals) throw Signal();
  };
  const auto waiting = session(given);
  ASSERT_TRUE(wait(*waiting));
  server.set({.is_stuck = true});
  signals = true;
  EXPECT_THROW(run(*waiting, 1), Signal);
  signals = false;
  server.set({});
}

}  // namespace
}  // namespace atl::infer
