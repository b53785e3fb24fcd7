// SPDX-License-Identifier: Apache-2.0
// How sessions end: while inferences run, and in a forked process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <semaphore>
#include <thread>
#include <utility>

#include "tests/infer/infer_cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::failure;
using test::ScriptedServer;

/// Each operator waits for a permit.
class Stepping : public test::ModelledRunner {
 public:
  Stepping() : ModelledRunner(test::Machine::kRobot, 0) {}
  std::vector<Value> run(const Call& call, std::span<const Value> operands, std::span<const Change> changes) override {
    ++started;
    permits.acquire();
    return ModelledRunner::run(call, operands, changes);
  }
  std::atomic<int> started = 0;
  std::counting_semaphore<> permits{0};
};

class SessionEnd : public test::SessionTest {
 protected:
  Outcome run_bytes(Session& session, std::uint64_t seed) const {
    const std::vector<std::byte> given = input(seed);
    const HostBytes bytes{given, nullptr};
    return session.run({&bytes, 1});
  }
  template <typename Holds>
  static bool comes_true(const Holds& holds) {
    const auto limit = Deadline::after(20s);
    while (!holds() && !limit.expired()) std::this_thread::yield();
    return holds();
  }
};

// Proves I-5.
TEST_F(SessionEnd, AnInferenceStopsBehindTheOperatorAtHand) {
  const auto runner = std::make_shared<Stepping>();
  Session session(options(""), bundle(), runner);
  std::thread running([&] {
    EXPECT_NE(failure(ErrorKind::kAborted, [&] { run_bytes(session, 1); }).find("closed"), std::string::npos);
  });
  ASSERT_TRUE(comes_true([&] { return runner->started == 1; }));
  std::thread closing([&] { session.close(); });
  EXPECT_THROW(run_bytes(session, 2), Error);  // closing the session ends its wait for a turn
  runner->permits.release();
  running.join();
  closing.join();
  EXPECT_EQ(runner->started, 1);
  EXPECT_NE(failure(ErrorKind::kInvalidArgument, [&] { run_bytes(session, 3); }).find("closed"), std::string::npos);
  session.close();
  EXPECT_EQ(session.report().inferences, 0U);
}

// Proves I-5.
TEST_F(SessionEnd, AnInferenceThatWaitsForTheServerStops) {
  ScriptedServer server(credentials_);
  const auto session = this->session(patient(server.address(), 1000s));
  ASSERT_TRUE(wait(*session));
  server.set({.is_stuck = true});
  std::thread running([&] { EXPECT_NE(failure(ErrorKind::kAborted, [&] { run_bytes(*session, 1); }), ""); });
  EXPECT_TRUE(comes_true([&] { return server.count("Run") == 1; }));
  session->close();
  running.join();
  EXPECT_EQ(session->report().link.state, LinkState::kClosed);
}

/// Counts the tensors taken from the host: inputs, and the server's rows.
class Taking : public test::ModelledRunner {
 public:
  Taking() : ModelledRunner(test::Machine::kRobot, 0) {}
  Value from_host(const Tensor& type, const HostBytes& bytes) override {
    ++taken;
    return ModelledRunner::from_host(type, bytes);
  }
  std::atomic<int> taken = 0;
};

/// The server has answered the first inference of a session and does not end it; the second one waits for that.
class SessionWaits : public SessionEnd {
 protected:
  SessionWaits() : session_(patient(server_.address(), 1000s), bundle(), runner_) {}
  void SetUp() override {
    ASSERT_TRUE(wait(session_));
    server_.set({.ends_later = 1000s});
    ASSERT_EQ(run_bytes(session_, 1).origin, Origin::kServer);
    taken_ = runner_->taken;
  }
  bool has_started() const {
    return comes_true([&] { return runner_->taken > taken_; });
  }

  ScriptedServer server_{credentials_};
  const std::shared_ptr<Taking> runner_ = std::make_shared<Taking>();
  Session session_;
  int taken_ = 0;
};

TEST_F(SessionWaits, AClosedSessionDoesNot) {
  std::thread running([&] { EXPECT_NE(failure(ErrorKind::kAborted, [&] { run_bytes(session_, 2); }), ""); });
  EXPECT_TRUE(has_started());
  session_.close();
  running.join();
  EXPECT_EQ(server_.count("Run"), 1);
}

TEST_F(SessionWaits, AServerThatIsLostMeanwhileIsNotAsked) {
  std::thread cutting([&] {
    EXPECT_TRUE(has_started());
    server_.cut();
    server_.set({});  // its next inferences end
  });
  const Outcome outcome = run_bytes(session_, 2);
  cutting.join();
  EXPECT_EQ(outcome.plan == "local", outcome.origin == Origin::kLocal) << outcome.plan;
}

// Python's signal handlers run in that check.
TEST_F(SessionEnd, TheCheckOfAnInferenceThatWaitsMayUseTheSession) {
  ScriptedServer server(credentials_);
  SessionOptions given = patient(server.address(), 1000s);
  Session* waiting = nullptr;
  bool has_reported = false;
  given.check = [&] {
    if (waiting == nullptr || std::exchange(has_reported, true)) return;
    EXPECT_EQ(waiting->report().inferences, 1U);
    server.set({});  // which ends the first inference
  };
  const auto session = this->session(given);
  ASSERT_TRUE(wait(*session));
  server.set({.ends_later = 1000s});
  ASSERT_EQ(run_bytes(*session, 1).origin, Origin::kServer);
  waiting = session.get();
  EXPECT_EQ(run_bytes(*session, 2).origin, Origin::kServer);
  EXPECT_TRUE(has_reported);
}

TEST_F(SessionEnd, ManyMayCloseIt) {
  ScriptedServer server(credentials_);
  const auto session = this->session(options(server.address()));
  std::vector<std::thread> closers;
  for (int i = 0; i < 4; ++i) closers.emplace_back([&] { session->close(); });
  for (std::thread& each : closers) each.join();
  EXPECT_FALSE(session->wait_until_ready(Deadline::never())) << "there is nothing to wait for";
}

bool is_refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUnavailable && std::string(error.what()).find("forked") != std::string::npos;
  }
  return false;
}

// Runs `body` in a forked child and expects it to return true there.
void expect_in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

TEST_F(SessionEnd, AForkedChildIsToldAndDisturbsNothing) {
  ScriptedServer server(credentials_);
  auto session = this->session(options(server.address()));
  auto alone = this->session(options(""));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  run(*session, 1);
  expect_in_child([&] {
    for (Session* each : {session.get(), alone.get()}) {
      if (!each->is_inherited() || !is_refused([&] { run_bytes(*each, 1); })) return false;
      if (!is_refused([&] { static_cast<void>(each->report()); })) return false;
      if (!is_refused([&] { each->wait_until_ready(Deadline::never()); })) return false;
      each->close();
    }
    session.reset();
    alone.reset();
    return true;
  });
  EXPECT_FALSE(session->is_inherited());
  run(*session, 2);
  run(*alone, 2);
  EXPECT_EQ(session->report().link.connections, 1U) << session->report().link.text;
}

// A thread of the parent has the turn forever: the child must not wait for it.
TEST_F(SessionEnd, AForkAmidAnInferenceLeavesTheChildFree) {
  const auto runner = std::make_shared<Stepping>();
  auto session = std::make_unique<Session>(options(""), bundle(), runner);
  std::thread running([&] { run_bytes(*session, 1); });
  ASSERT_TRUE(comes_true([&] { return runner->started == 1; }));
  expect_in_child([&] {
    if (!is_refused([&] { run_bytes(*session, 2); })) return false;
    session.reset();
    return true;
  });
  runner->permits.release(100);
  running.join();
}

}  // namespace
}  // namespace atl::infer
