// SPDX-License-Identifier: Apache-2.0
// Uploads of models to a server, and clients that wait for them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "atoll/core/fd.h"
#include "atoll/infer/bundle/bundle.h"
#include "tests/infer/serve/cases.h"
#include "tests/support/peers.h"

namespace atl::infer::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class ServeModelsTest : public ServeTest {};

TEST_F(ServeModelsTest, RobotsThatSendTheSameModelWaitForEachOther) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  first->send(model.open(1));
  const auto need = first->expect<wire::Need>();
  auto second = client();
  second->send(model.open(1));
  const auto waiting = second->next();
  ASSERT_TRUE(waiting);
  const wire::Message told = wire::decode(waiting->payload);
  ASSERT_TRUE(std::holds_alternative<wire::Queued>(told));
  EXPECT_THAT(std::get<wire::Queued>(told).why, HasSubstr("uploading"));
  send_missing(*first, model, 1, need);
  first->expect<wire::Ready>();
  second->expect<wire::Ready>();
}

TEST_F(ServeModelsTest, ARobotThatVanishesAmidItsUploadIsFollowedByTheNext) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  first->send(model.open(1));
  const auto need = first->expect<wire::Need>();
  EXPECT_TRUE(need.graph);
  first->send(wire::GraphText{1, model.text});
  first->send(wire::Ping{5});
  first->expect<wire::Pong>();  // so the graph has arrived
  auto second = client();
  second->send(model.open(1));
  first->vanish();
  const auto rest = second->expect<wire::Need>();
  EXPECT_FALSE(rest.graph);
  send_missing(*second, model, 1, rest);
  second->expect<wire::Ready>();
}

TEST_F(ServeModelsTest, AModelWithAnotherHashIsRefused) {
  start();
  ServedGraph model(chain_of_layers(4, 2));
  model.hash[0] ^= std::byte{1};
  auto robot = client();
  robot->send(model.open(1));
  send_missing(*robot, model, 1, robot->expect<wire::Need>());
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kRefused);
  EXPECT_EQ(failed.model, 1u);
  robot->send(wire::Ping{1});  // the connection goes on
  robot->expect<wire::Pong>();
}

TEST_F(ServeModelsTest, AGraphThatIsNoneIsRefused) {
  start();
  ServedGraph model(chain_of_layers(4, 2));
  model.text = R"({"atoll_graph": 1, "nonsense": true})";
  const std::string all = model.text + model.weights;
  EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(model.hash.data()), nullptr, EVP_sha256(),
             nullptr);
  auto robot = client();
  robot->send(model.open(1));
  send_missing(*robot, model, 1, robot->expect<wire::Need>());
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kProtocol);
}

TEST_F(ServeModelsTest, WhoWaitsForAModelGetsItWhoeverSentIt) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  first->send(model.open(1));
  const auto need = first->expect<wire::Need>();
  auto second = client();
  second->send(model.open(1));
  const auto told = second->next();
  ASSERT_TRUE(told);
  ASSERT_TRUE(std::holds_alternative<wire::Queued>(wire::decode(told->payload)));
  send_missing(*first, model, 1, need);
  first->send(wire::Close{1});  // while its hash is computed, perhaps
  first->send(wire::Ping{2});
  const auto message = second->next_message();
  ASSERT_TRUE(message);
  if (const auto* missing = std::get_if<wire::Need>(&*message)) {
    send_missing(*second, model, 1, *missing);
    second->expect<wire::Ready>();
  } else {
    EXPECT_TRUE(std::holds_alternative<wire::Ready>(*message)) << wire::name_of(*message);
  }
}

TEST_F(ServeModelsTest, AnUploadThatStallsMakesWayForOthers) {
  options_.upload_limit = 1s;
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  first->send(model.open(1));
  first->expect<wire::Need>();
  auto second = client();
  second->send(model.open(1));
  EXPECT_EQ(first->expect<wire::Failed>().kind, ErrorKind::kTimeout);
  send_missing(*second, model, 1, second->expect<wire::Need>());
  second->expect<wire::Ready>();
}

// A graph that is a pipe without a reader: opening it for writing blocks.
TEST_F(ServeModelsTest, ASlowDiskStallsNobodyElse) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  const std::string part = options_.cache_folder + "/" + text_of(model.hash) + ".part";
  std::filesystem::create_directories(part);
  ASSERT_EQ(::mkfifo((part + "/graph.json").c_str(), 0600), 0);
  auto robot = client();
  robot->send(model.open(1));
  EXPECT_TRUE(robot->expect<wire::Need>().graph);
  robot->send(wire::GraphText{1, model.text});
  robot->send(wire::Ping{1});
  robot->expect<wire::Pong>();
  auto other = client();
  other->send(wire::Ping{2});
  EXPECT_EQ(other->expect<wire::Pong>().token, 2u);
  const Fd reader(::open((part + "/graph.json").c_str(), O_RDONLY | O_NONBLOCK));
  const auto failed = robot->expect<wire::Failed>();
  EXPECT_EQ(failed.kind, ErrorKind::kUnavailable);
  EXPECT_THAT(failed.text, HasSubstr("cannot be written"));
}

TEST_F(ServeModelsTest, ADiskThatNeverAnswersDoesNotHoldUpTheEnd) {
  options_.end_limit = 50ms;
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  const std::string part = options_.cache_folder + "/" + text_of(model.hash) + ".part";
  std::filesystem::create_directories(part);
  ASSERT_EQ(::mkfifo((part + "/graph.json").c_str(), 0600), 0);
  auto robot = client();
  robot->send(model.open(1));
  robot->expect<wire::Need>();
  robot->send(wire::GraphText{1, model.text});
  robot->send(wire::Ping{1});
  robot->expect<wire::Pong>();
  EXPECT_TRUE(server_->drain(Deadline::after(5s)));  // nothing is computed
  server_.reset();
  EXPECT_TRUE(robot->is_closed());
  const Fd reader(::open((part + "/graph.json").c_str(), O_RDONLY | O_NONBLOCK));  // unblocks the disk
  atl::test::wait_until("the abandoned thread", [&] { return !std::filesystem::exists(part); });
}

TEST_F(ServeModelsTest, MoreModelsThanAllowedWait) {
  options_.most_workers = 1;
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  upload(*first, model);
  auto second = client();
  second->send(model.open(1));
  const auto told = second->next();
  ASSERT_TRUE(told);
  EXPECT_TRUE(std::holds_alternative<wire::Queued>(wire::decode(told->payload)));
  EXPECT_EQ(server_->counts().waiting_models, 1u);
  first->send(wire::Close{1});
  second->expect<wire::Ready>();
}

TEST_F(ServeModelsTest, AModelThatNeverGetsReadyIsEnded) {
  options_.device = "slow-start";
  options_.start_limit = 1s;
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto robot = client();
  robot->send(model.open(1));
  send_missing(*robot, model, 1, robot->expect<wire::Need>());
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kTimeout);
}

TEST_F(ServeModelsTest, ASecondRobotNeedNotSendTheModel) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  auto first = client();
  upload(*first, model);
  auto second = client();
  second->send(model.open(9));
  const auto ready = second->expect<wire::Ready>();
  EXPECT_EQ(ready.model, 9u);
  EXPECT_EQ(ready.whole.size(), model.graph.nodes.size());  // timed once, too
  EXPECT_EQ(server_->counts().workers, 2u);
}

}  // namespace
}  // namespace atl::infer::test
