// SPDX-License-Identifier: Apache-2.0
// A server with a stalled worker process: the client is told in time, and until then knows that the server is alive.
#include <gmock/gmock.h>

#include "tests/infer/serve/cases.h"

namespace atl::infer::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class StalledWorkerTest : public ServeTest {
 protected:
  std::unique_ptr<RawClient> with_frozen_worker() {
    options_.device = "freeze";
    start();
    auto made = client();
    upload(*made, model_);
    return made;
  }
  // Counts the pings that the client gets before it is told that the worker is lost.
  static int pings_before_failure(RawClient& robot, const std::string& why) {
    for (int pings = 0;;) {
      const auto message = robot.next_message();
      if (!message) throw std::runtime_error("closed without a word");
      if (std::holds_alternative<wire::Ping>(*message)) ++pings;
      const auto* failed = std::get_if<wire::Failed>(&*message);
      if (failed == nullptr) continue;
      EXPECT_EQ(failed->kind, ErrorKind::kTimeout);
      EXPECT_EQ(failed->model, 1U);
      EXPECT_THAT(failed->text, HasSubstr(why));
      if (failed->inference == 0) return pings;
    }
  }
  // The connection and the server continue.
  void expect_alive(RawClient& robot) {
    robot.send(wire::Ping{7});
    wire::Message message;
    do {
      message = robot.next_message().value();
    } while (std::holds_alternative<wire::Ping>(message));
    EXPECT_TRUE(std::holds_alternative<wire::Pong>(message)) << wire::name_of(message);
    EXPECT_EQ(server_->counts().workers, 0U);
    EXPECT_EQ(server_->counts().workers_lost, 1U);
  }

  const ServedGraph model_{chain_of_layers(4, 2)};
};

TEST_F(StalledWorkerTest, ThatTakesNoRows) {
  options_.compute_limit = 2s;
  auto robot = with_frozen_worker();
  robot->send(wire::Run{1, 1, 1, 0});
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kTensor;
  header.id = 1;
  header.rows_end = 4;
  header.message_bytes = 1U << 30;
  const auto rows = std::vector<std::byte>(std::size_t{1} << 18);
  for (int i = 0; i < 100; ++i) robot->send(header, rows);
  EXPECT_GE(pings_before_failure(*robot, "has read nothing"), 1);
  expect_alive(*robot);
}

// The queue for a worker is bounded for small messages as for rows.
TEST_F(StalledWorkerTest, ThatTakesNoCancellations) {
  options_.compute_limit = 6s;  // in which a slow build reads as many of them as fill the queue
  auto robot = with_frozen_worker();
  robot->send(wire::Run{1, 1, 1, 0});
  const wire::FrameBytes frame = wire::make_frame(wire::Cancel{1});
  const auto many = std::make_shared<std::vector<std::byte>>();
  while (many->size() < std::size_t{1} << 20) many->insert(many->end(), frame->begin(), frame->end());
  for (int i = 0; i < 24; ++i) robot->send_bytes(many);
  // It has neither read for too long nor ended what was cancelled, whichever is seen first.
  EXPECT_GE(pings_before_failure(*robot, "the worker process for this model has"), 1);
  expect_alive(*robot);
}

TEST_F(StalledWorkerTest, ThatEndsNothing) {
  options_.compute_limit = 300ms;
  auto robot = with_frozen_worker();
  robot->send(wire::Run{1, 1, 1, 0});
  robot->send(wire::Cancel{1});
  pings_before_failure(*robot, "cancelled");
  expect_alive(*robot);
}

TEST_F(StalledWorkerTest, ThatPreparesNothing) {
  options_.start_limit = 5s;  // in which it has to start, too
  auto robot = with_frozen_worker();
  robot->send(model_.divide(1, 1));
  pings_before_failure(*robot, "division");
  expect_alive(*robot);
}

}  // namespace
}  // namespace atl::infer::test
