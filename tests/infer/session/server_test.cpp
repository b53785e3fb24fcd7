// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "atoll/infer/session/session.h"
#include "tests/infer/serve/cases.h"
#include "tests/support/relay.h"

// A real session and a real server, with worker processes of modelled layers.
namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using atl::test::Relay;
using test::Machine;
using test::ModelledRunner;

class SessionServer : public test::ServeTest {
 protected:
  // The robot's seconds for all layers; the server takes a fiftieth.
  static plan::OperatorGraph layers(double robot_seconds, std::int64_t input_row_bytes = 64) {
    plan::OperatorGraph graph = test::chain_of_layers(20, 6, robot_seconds / 6);
    for (plan::Operator& each : graph.operators) each.server.per_row /= 50;
    graph.operators.front().bytes = graph.operators.front().rows * input_row_bytes;
    return graph;
  }

  std::unique_ptr<Session> session(const test::ServedGraph& model, const std::string& policy = "auto",
                                   Hedge hedge = Hedge::kDeadline, const std::string& address = "") const {
    SessionOptions options;
    options.profile = modelled_profile(model.graph, Machine::kRobot);
    options.policy = policy;
    options.hedge = hedge;
    ClientOptions client;
    client.server = address.empty() ? server_->address() : address;
    client.credentials = credentials_;
    client.least_backoff = 10ms;
    client.most_backoff = 100ms;
    if (hedge == Hedge::kNever) client.silence = 20s;  // all answers are to come from the server
    options.server = client;
    const auto weights = std::make_shared<std::string>(model.weights);
    return std::make_unique<Session>(options, make_bundle(model.text, {as_byte_span(*weights), weights}, "test"),
                                     std::make_shared<ModelledRunner>(Machine::kRobot));
  }
  static bool is_ready(const Session& session) { return session.wait_until_ready(Deadline::after(60s)); }

  // The answer is what one machine alone gives.
  static Outcome run(Session& session, const test::ServedGraph& model, std::uint64_t seed) {
    const auto input = model.input(seed);
    const HostBytes bytes{input, nullptr};
    Outcome outcome = session.run({&bytes, 1});
    EXPECT_EQ(outcome.outputs.size(), 1U);
    const std::span<const std::byte> got = outcome.outputs.at(0).bytes;
    const std::vector<std::byte> expected = model.expected(input);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()))
        << outcome.plan << ", " << to_string(outcome.origin);
    return outcome;
  }
  // Returns whether the server eventually answers again.
  static bool is_served(Session& session, const test::ServedGraph& model) {
    const Deadline limit = Deadline::after(60s);
    for (std::uint64_t seed = 1000; !limit.expired(); ++seed) {
      if (run(session, model, seed).origin == Origin::kServer) return true;
    }
    return false;
  }
  // Returns whether the server eventually takes part in an answer again for which at least this many bytes were sent
  // up.
  static bool is_helped(Session& session, const test::ServedGraph& model, std::uint64_t bytes) {
    const Deadline limit = Deadline::after(60s);
    for (std::uint64_t seed = 1000; !limit.expired(); ++seed) {
      const Outcome outcome = run(session, model, seed);
      if (outcome.origin != Origin::kLocal && outcome.up_bytes >= bytes) return true;
    }
    return false;
  }
};

TEST_F(SessionServer, AnswersComeFromTheServer) {
  start();
  const test::ServedGraph model(layers(0.1));
  const auto session = this->session(model);
  ASSERT_TRUE(is_ready(*session)) << session->report().json();
  int from_server = 0;
  for (std::uint64_t i = 0; i < 60; ++i) from_server += run(*session, model, i).origin == Origin::kServer ? 1 : 0;
  EXPECT_GT(from_server, 30) << session->report().json();
  EXPECT_EQ(session->report().link.connections, 1U);
}

TEST_F(SessionServer, OnOneHostRowsDoNotPassThroughTheConnection) {
  start();
  const test::ServedGraph model(layers(0.1, 65'536));
  const auto session = this->session(model, "offload", Hedge::kNever);
  ASSERT_TRUE(is_ready(*session)) << session->report().json();
  const std::uint64_t input_bytes = model.input(0).size();
  ASSERT_GT(input_bytes, 1'000'000U);
  const Deadline limit = Deadline::after(60s);
  std::uint64_t passed = input_bytes;
  for (std::uint64_t i = 0; passed >= input_bytes && !limit.expired(); ++i) {  // until the memory is mapped
    const std::uint64_t before = server_->counts().bytes_in;
    ASSERT_EQ(run(*session, model, i).origin, Origin::kServer);
    passed = server_->counts().bytes_in - before;
  }
  EXPECT_LT(passed, input_bytes / 10);
}

// Proves I-6.
TEST_F(SessionServer, AnyPlanGivesTheSame) {
  start();
  const test::ServedGraph model(layers(0.02));
  for (const char* policy : {"stream", "cut", "tensor", "random", "intra-dp", "hybrid-parallel"}) {
    const auto session = this->session(model, policy, Hedge::kNever);
    ASSERT_TRUE(is_ready(*session)) << policy << session->report().json();
    for (std::uint64_t i = 0; i < 10; ++i) run(*session, model, i);
    EXPECT_EQ(session->report().link.state, LinkState::kReady) << policy << session->report().link.text;
    EXPECT_EQ(session->report().link.connections, 1U) << policy;
  }
}

TEST_F(SessionServer, OutcomesSayWhatWasDivided) {
  start();
  const test::ServedGraph model(layers(0.02));
  const auto session = this->session(model, "stream", Hedge::kNever);
  ASSERT_TRUE(is_ready(*session));
  const Outcome divided = run(*session, model, 1);
  ASSERT_TRUE(divided.division);
  EXPECT_EQ(divided.division->policy, "stream");
  EXPECT_EQ(divided.division->shares.size(), model.operators.operators.size());
  EXPECT_GT(divided.division->chunks, 1);
  server_.reset();
  Outcome alone = run(*session, model, 2);
  for (std::uint64_t i = 3; alone.division && i < 50; ++i) alone = run(*session, model, i);
  EXPECT_FALSE(alone.division) << "the loss is known by then";
  EXPECT_EQ(alone.origin, Origin::kLocal);
}

TEST_F(SessionServer, WorkersThatDieCostNoAnswer) {
  options_.device = "crash";
  start();
  const test::ServedGraph model(layers(0.02));
  const auto session = this->session(model, "offload");
  ASSERT_TRUE(is_ready(*session));
  for (std::uint64_t i = 0; i < 10; ++i) run(*session, model, i);
}

TEST_F(SessionServer, ADrainedServerIsFollowedByTheNext) {
  start();
  const test::ServedGraph model(layers(0.05));
  const auto session = this->session(model, "offload");
  ASSERT_TRUE(is_ready(*session));
  run(*session, model, 1);
  options_.port = transport::parse_host_port(server_->address()).port;
  EXPECT_TRUE(server_->drain(Deadline::after(10s)));
  run(*session, model, 2);
  server_.reset();
  run(*session, model, 3);
  start();
  EXPECT_TRUE(is_served(*session, model)) << session->report().json();
}

// Proves I-2.
TEST_F(SessionServer, AServerThatIsKilledCostsNoAnswer) {
  start();
  const test::ServedGraph model(layers(0.02));
  const auto session = this->session(model, "offload");
  ASSERT_TRUE(is_ready(*session));
  options_.port = transport::parse_host_port(server_->address()).port;
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    std::atomic<std::uint64_t> started = 0;
    std::thread killer([&] {
      while (started < 3 + turn) std::this_thread::yield();
      server_.reset();
    });
    for (std::uint64_t i = 0; i < 10; ++i) {
      ++started;
      run(*session, model, 100 * turn + i);
    }
    killer.join();
    EXPECT_EQ(run(*session, model, 99).origin, Origin::kLocal);
    if (turn == 1) options_.cache_folder = folder_ + "/other-models";  // another server, with an empty cache
    start();
    EXPECT_TRUE(is_served(*session, model)) << session->report().json();
    EXPECT_EQ(server_->counts().uploads, turn == 1 ? 1U : 0U);
  }
}

// Proves I-2.
TEST_F(SessionServer, ALinkThatIsCutAnywhereCostsNoAnswer) {
  start();
  Relay relay(server_->address());
  const test::ServedGraph model(layers(0.01, 2000));
  const auto session = this->session(model, "offload", Hedge::kDeadline, relay.address());
  ASSERT_TRUE(is_ready(*session));
  std::uint64_t seed = 0;
  for (std::uint64_t bytes = 1; bytes < 200'000; bytes = 3 * bytes + 1) {
    for (const Relay::Cut how : {Relay::Cut::kEnd, Relay::Cut::kReset}) {
      relay.cut_after(bytes, how);
      for (int i = 0; i < 4; ++i) run(*session, model, ++seed);
    }
  }
  relay.cut_after(0, Relay::Cut::kEnd);
  EXPECT_TRUE(is_served(*session, model)) << session->report().json();
  EXPECT_GT(session->report().link.connections, 1U);
}

TEST_F(SessionServer, EightThenNothingThenTwoHundredMegabits) {
  start();
  Relay relay(server_->address(), {1e6, 0us, true});
  // The input takes 150 ms, then forever, then 6 ms.
  const test::ServedGraph model(layers(0.1, 7500));
  const auto session = this->session(model, "auto", Hedge::kDeadline, relay.address());
  ASSERT_TRUE(is_ready(*session));
  for (std::uint64_t i = 0; i < 8; ++i) run(*session, model, i);
  relay.stall();
  for (std::uint64_t i = 10; i < 16; ++i) EXPECT_EQ(run(*session, model, i).origin, Origin::kLocal);
  relay.set_path({25e6, 0us, true});
  relay.resume();
  // The best plan may leave some rows to the robot. At eight megabits it answers in 30 ms, in which at most 30 kB are
  // sent up.
  EXPECT_TRUE(is_helped(*session, model, 50'000)) << session->report().json();
}

TEST_F(SessionServer, FiftySessionsAtOnce) {
  start();
  const test::ServedGraph model(layers(0.05));
  constexpr std::uint64_t kSessions = 50;
  constexpr std::uint64_t kFrames = 3;
  std::vector<std::unique_ptr<Session>> sessions;
  for (std::uint64_t i = 0; i < kSessions; ++i) sessions.push_back(session(model, "offload", Hedge::kNever));
  std::atomic<std::uint64_t> from_server = 0;
  std::vector<std::thread> robots;
  for (std::uint64_t i = 0; i < kSessions; ++i) {
    robots.emplace_back([&, i] {
      Session& own = *sessions[i];
      EXPECT_TRUE(own.wait_until_ready(Deadline::after(100s))) << own.report().json();
      for (std::uint64_t frame = 0; frame < kFrames; ++frame) {
        if (run(own, model, kFrames * i + frame).origin == Origin::kServer) ++from_server;
      }
    });
  }
  for (std::thread& each : robots) each.join();
  EXPECT_EQ(from_server.load(), kSessions * kFrames);
  EXPECT_EQ(server_->counts().uploads, 1U);
}

}  // namespace
}  // namespace atl::infer
