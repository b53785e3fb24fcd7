// SPDX-License-Identifier: Apache-2.0
// A robot and a server of different releases: each reports it, no answer is wrong, and all works once the releases
// match.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/wire_target.h"
#include "tests/infer/infer_cases.h"
#include "tests/infer/serve/cases.h"
#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// The message as a frame of the next wire version, with checksums that fit.
std::shared_ptr<std::vector<std::byte>> of_next_version(const wire::Message& message) {
  std::vector<std::byte> frame = *wire::make_frame(message);
  frame[4] = static_cast<std::byte>(wire::kVersion + 1);
  return std::make_shared<std::vector<std::byte>>(fuzz::with_checksums(frame));
}

// Greets every client in the next version, as a server that has been restarted with a later release does.
class LaterServer final : public transport::StreamListener::Owner, public transport::SecureStream::Owner {
 public:
  LaterServer(std::shared_ptr<const transport::Credentials> credentials, std::uint16_t port)
      : credentials_(std::move(credentials)), loop_("later") {
    loop_.run_and_wait(
        [&] { listener_ = std::make_unique<transport::StreamListener>(loop_, *this, "127.0.0.1", port); });
  }
  ~LaterServer() override {
    loop_.run_and_wait([&] {
      streams_.clear();
      listener_.reset();
    });
  }

  std::uint16_t port() const { return listener_->port(); }

 private:
  void on_connection(Fd socket, const std::string& peer) override {
    transport::SecureStream::Options options;
    options.name = peer;
    streams_.push_back(std::make_unique<transport::SecureStream>(
        loop_, *this, std::move(socket), transport::SecureStream::Role::kServer, credentials_, options));
  }
  void on_open(transport::SecureStream&) override {}
  void on_drained(transport::SecureStream&) override {}
  void on_closed(transport::SecureStream&, const std::optional<Error>&) override {}
  void on_bytes(transport::SecureStream& stream, std::span<const std::byte>) override {
    const auto answer = of_next_version(wire::Welcome{"atoll 99", "cpu", 0, 1, 0, ""});
    stream.send_on_loop({*answer, answer});
  }

  const std::shared_ptr<const transport::Credentials> credentials_;
  std::unique_ptr<transport::StreamListener> listener_;
  std::vector<std::unique_ptr<transport::SecureStream>> streams_;
  Loop loop_;
};

using WireVersion = test::SessionTest;
using WireVersionServe = test::ServeTest;

TEST_F(WireVersion, ARobotComputesAloneUntilTheServerIsOfItsReleaseAgain) {
  auto server = std::make_unique<test::ScriptedServer>(credentials_);
  const std::uint16_t port = server->port();
  const auto session = this->session(options(server->address()));
  ASSERT_TRUE(wait(*session)) << session->report().json();
  run(*session, 1);
  server.reset();
  {
    const LaterServer later(credentials_, port);
    ASSERT_EQ(later.port(), port);
    const auto limit = Deadline::after(20s);
    std::uint64_t inference = 2;
    bool says_why = false;
    while (!says_why && !limit.expired()) {
      EXPECT_EQ(run(*session, inference++).origin, Origin::kLocal);
      says_why = session->report().link.text.find("wire version 2, but this side has version 1") != std::string::npos;
    }
    EXPECT_TRUE(says_why) << session->report().link.text;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(*session, inference++).origin, Origin::kLocal);
    const auto ready = [&] { session->wait_until_ready(Deadline::after(20s)); };
    EXPECT_THAT(test::failure(ErrorKind::kRefused, ready), HasSubstr("install the same release on both"));
  }
  server = std::make_unique<test::ScriptedServer>(credentials_, 0, port);
  ASSERT_TRUE(wait(*session)) << session->report().json();
  int from_server = 0;
  for (std::uint64_t i = 100; i < 110; ++i) from_server += run(*session, i).origin == Origin::kServer ? 1 : 0;
  EXPECT_GT(from_server, 0);
}

TEST_F(WireVersionServe, AServerTellsALaterRobotWhichVersionItSpeaks) {
  start();
  auto later = stranger();
  later->send_bytes(of_next_version(wire::Hello{"atoll 99", "robot"}));
  const auto failed = later->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kMismatch);
  EXPECT_THAT(failed.text, HasSubstr("wire version 2, but this side has version 1"));
  EXPECT_TRUE(later->is_closed());
  EXPECT_GE(server_->counts().refused, 1u);
  auto robot = client();
  robot->send(wire::Ping{1});
  robot->expect<wire::Pong>();
}

// Releases whose frames are the same, and which would derive other operators of a model.
TEST_F(WireVersion, AServerWithOtherRulesIsAskedForNothingUntilItHasTheSame) {
  test::ScriptedServer server(credentials_);
  server.set({.rules = kRulesVersion + 1});
  auto chosen = options(server.address());
  chosen.server->ask_again = 20ms;
  const auto session = this->session(chosen);
  const auto limit = Deadline::after(20s);
  std::string told;
  while (told.find("(scripted) uses version") == std::string::npos && !limit.expired()) {
    told = session->report().link.text;
  }
  EXPECT_THAT(told,
              HasSubstr("version " + std::to_string(kRulesVersion + 1) + " of the division rules, this robot (atoll "));
  EXPECT_THAT(told, HasSubstr("install the same release on both"));
  EXPECT_EQ(run(*session, 1).origin, Origin::kLocal);
  EXPECT_EQ(server.count("Open"), 0);
  server.set({});
  EXPECT_TRUE(wait(*session)) << session->report().json();
}

TEST_F(WireVersionServe, ARobotWithOtherRulesIsToldSo) {
  start();
  const test::ServedGraph model(test::chain_of_layers(4, 2));
  for (const std::uint32_t rules : {0U, kRulesVersion + 1}) {
    auto other = stranger();
    other->send(wire::Hello{"atoll 99", "robot", rules});
    EXPECT_EQ(other->expect<wire::Welcome>().rules, kRulesVersion);
    other->send(model.open(1));
    const auto failed = other->expect<wire::Failed>();
    EXPECT_EQ(failed.kind, ErrorKind::kMismatch);
    EXPECT_EQ(failed.model, 1u);
    EXPECT_THAT(failed.text, HasSubstr("(atoll 99) uses version " + std::to_string(rules)));
  }
}

TEST_F(WireVersionServe, AModelOfALaterReleaseIsRefusedAndTheConnectionGoesOn) {
  start();
  test::ServedGraph model(test::chain_of_layers(4, 2));
  model.text.replace(model.text.find("\"atoll_graph\":1"), 15, "\"atoll_graph\":2");
  const std::string all = model.text + model.weights;
  EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(model.hash.data()), nullptr, EVP_sha256(),
             nullptr);
  auto robot = client();
  robot->send(model.open(1));
  send_missing(*robot, model, 1, robot->expect<wire::Need>());
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.model, 1u);
  EXPECT_THAT(failed.text, HasSubstr("version 2, but this Atoll reads version 1"));
  const test::ServedGraph known(test::chain_of_layers(4, 2));
  upload(*robot, known, 2);
  divide(*robot, known, 1, 2);
  begin(*robot, known, 1, 1, known.input(1), 2);
  EXPECT_EQ(answer(*robot, 1), known.expected(known.input(1)));
}

}  // namespace
}  // namespace atl::infer
