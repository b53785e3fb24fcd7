// SPDX-License-Identifier: Apache-2.0
// A server's reaction to clients that violate the protocol.
#include <sys/socket.h>

#include <functional>

#include "tests/infer/serve/cases.h"

namespace atl::infer::test {
namespace {

using namespace std::chrono_literals;

class StrangersTest : public ServeTest {
 protected:
  // The server reports why, closes, and serves others.
  void expect_refused(RawClient& bad, ErrorKind kind = ErrorKind::kProtocol) {
    for (;;) {
      const auto message = bad.next_message();
      ASSERT_TRUE(message) << "closed without a word";
      if (const auto* failed = std::get_if<wire::Failed>(&*message)) {
        EXPECT_EQ(failed->kind, kind) << failed->text;
        EXPECT_EQ(failed->model, 0u);
        break;
      }
    }
    EXPECT_TRUE(bad.is_closed());
    const ServedGraph model(chain_of_layers(4, 2));
    auto good = client();
    upload(*good, model);
    divide(*good, model, 1);
    begin(*good, model, 1, 1, model.input(1));
    EXPECT_EQ(answer(*good, 1), model.expected(model.input(1)));
  }
};

// Proves I-7.
TEST_F(StrangersTest, WithoutTheKey) {
  start();
  const auto other = transport::Credentials::of_key(as_byte_span("another key of 16 or more bytes"));
  RawClient stranger(server_->address(), other);
  EXPECT_TRUE(stranger.is_closed());
  client();
}

TEST_F(StrangersTest, WithoutAHello) {
  start();
  auto bad = stranger();
  bad->send(wire::Ping{1});
  expect_refused(*bad);
}

TEST_F(StrangersTest, SilentAfterTheHandshake) {
  options_.hello_limit = 1s;
  start();
  auto bad = stranger();
  expect_refused(*bad, ErrorKind::kTimeout);
}

TEST_F(StrangersTest, ALargeMessageBeforeTheHello) {
  start();
  auto bad = stranger();
  bad->send(wire::GraphText{1, std::string(100'000, ' ')});
  expect_refused(*bad);
}

TEST_F(StrangersTest, Nonsense) {
  start();
  auto bad = client();
  bad->send_bytes(std::make_shared<std::vector<std::byte>>(200, std::byte{0x55}));
  expect_refused(*bad);
}

TEST_F(StrangersTest, MessagesOutOfOrder) {
  const ServedGraph model(chain_of_layers(4, 2));
  const ServedGraph fresh(chain_of_layers(5, 2));  // which never gets ready
  const std::vector<std::function<void(RawClient&)>> wrongs = {
      [](RawClient& bad) {
        bad.send(wire::Hello{"again", ""});
      },
      [](RawClient& bad) { bad.send(wire::Welcome{}); },
      [&](RawClient& bad) { bad.send(model.divide(1, 1)); },
      [](RawClient& bad) {
        bad.send(wire::Run{1, 1, 1, 0});
      },
      [](RawClient& bad) {
        bad.send(wire::GraphText{3, "{}"});
      },
      [](RawClient& bad) { bad.send(wire::Turn{wire::Turn::What::kWanted}); },
      [&](RawClient& bad) {
        bad.send(model.open(1));
        bad.send(model.open(1));
      },
      [&](RawClient& bad) {
        bad.send(fresh.open(1));
        bad.send(wire::Run{1, 1, 1, 0});
      },
      [&](RawClient& bad) {
        bad.send(fresh.open(1));
        wire::FrameHeader header;
        header.kind = wire::FrameKind::kWeights;
        header.id = 1;
        header.offset = 3;
        bad.send(header, std::vector<std::byte>(2));
      },
  };
  start();
  for (const auto& wrong : wrongs) {
    auto bad = client();
    wrong(*bad);
    expect_refused(*bad);
  }
}

TEST_F(StrangersTest, TwoInferencesAtOnce) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto bad = client();
  upload(*bad, model);
  divide(*bad, model, 1);
  bad->send(wire::Run{1, 1, 1, 0});
  bad->send(wire::Run{1, 2, 1, 0});
  expect_refused(*bad);
}

TEST_F(StrangersTest, InferencesThatDoNotAscend) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto bad = client();
  upload(*bad, model);
  divide(*bad, model, 1);
  begin(*bad, model, 5, 1, model.input(1));
  answer(*bad, 5);
  bad->send(wire::Run{1, 5, 1, 0});
  expect_refused(*bad);
}

TEST_F(StrangersTest, NumbersOfAnotherModelsInference) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto bad = client();
  upload(*bad, model, 1);
  upload(*bad, model, 2);
  divide(*bad, model, 1, 1);
  divide(*bad, model, 1, 2);
  bad->send(wire::Run{1, 1, 1, 0});
  bad->send(wire::Run{2, 1, 1, 0});
  expect_refused(*bad);
}

TEST_F(StrangersTest, AnotherSizeThanTheModelHas) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto good = client();
  upload(*good, model);
  auto bad = client();
  wire::Open open = model.open(1);
  open.weight_bytes = std::uint64_t{1} << 33;
  bad->send(open);
  EXPECT_EQ(bad->expect<wire::Failed>().kind, ErrorKind::kRefused);
}

TEST_F(StrangersTest, RowsThatNobodyExpectsEndTheWorkerAlone) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  for (const int wrong : {0, 1, 2, 3}) {
    auto bad = client();
    upload(*bad, model);
    divide(*bad, model, 1);
    bad->send(wire::Run{1, 1, 1, 0});
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kTensor;
    header.id = 1;
    header.rows_end = wrong == 0 ? 3 : 4;
    header.tensor = wrong == 1 ? 1 : 0;
    header.message_bytes = wrong == 2 ? 1U << 30 : 256;
    header.offset = wrong == 3 ? 16 : 0;
    bad->send(header, std::vector<std::byte>(16));
    wire::Failed failed;
    do {  // the inference first, perhaps
      failed = bad->expect<wire::Failed>();
      EXPECT_EQ(failed.model, 1u) << wrong;
    } while (failed.inference != 0);
    bad->send(wire::Ping{1});
    bad->expect<wire::Pong>();
  }
}

TEST_F(StrangersTest, MoreClientsThanAllowed) {
  options_.most_connections = 1;
  start();
  auto first = client();
  auto second = stranger();
  EXPECT_TRUE(second->is_closed());
}

TEST_F(StrangersTest, AModelThatIsTooLarge) {
  options_.most_model_bytes = 5;
  start();
  auto robot = client();
  robot->send(ServedGraph(chain_of_layers(4, 2)).open(1));
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kRefused);
}

// Whatever limit the server is given, clients are not asked for weights that its workers would not admit.
TEST_F(StrangersTest, AModelThatNoWorkerAdmitsIsRefusedBeforeItIsSent) {
  options_.most_model_bytes = std::uint64_t{1} << 40;
  options_.cache_bytes = std::uint64_t{1} << 40;
  start();
  auto robot = stranger();
  robot->send(wire::Hello{"test", "robot"});
  EXPECT_EQ(robot->expect<wire::Welcome>().most_model_bytes, std::uint64_t{8} << 30);
  wire::Open open = ServedGraph(chain_of_layers(4, 2)).open(1);
  open.weight_bytes = (std::uint64_t{8} << 30) + 1;
  robot->send(open);
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kRefused);
  EXPECT_NE(failed.text.find("has 8589934593 bytes of weights"), std::string::npos) << failed.text;
  EXPECT_NE(failed.text.find("at most 8589934592"), std::string::npos) << failed.text;
}

}  // namespace
}  // namespace atl::infer::test
