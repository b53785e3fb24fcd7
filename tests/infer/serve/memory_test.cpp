// SPDX-License-Identifier: Apache-2.0
// Payloads in memory that the server, its worker process and a robot on the same host map.
#include <gtest/gtest.h>

#include "tests/infer/serve/cases.h"

namespace atl::infer::test {
namespace {

// Rows of half a megabyte each way, which are several frames.
const plan::OperatorGraph& large_layers() {
  static const plan::OperatorGraph graph = chain_of_layers(8'000, 2);
  return graph;
}

class SharedMemory : public ServeTest {
 protected:
  // A robot on the server's host, with its model, and division 7.
  std::unique_ptr<RawClient> local_robot(const ServedGraph& model, bool maps = true) {
    auto robot = stranger();
    robot->send(wire::Hello{"test", "robot", kRulesVersion, robot->port()});
    robot->expect<wire::Welcome>();
    upload(*robot, model);
    if (!robot->fetch(robot->expect_offer())) throw std::runtime_error("no memory");
    if (maps) robot->send(wire::Mapped{1});
    divide(*robot, model, 7);
    return robot;
  }
  // A robot that might as well be on another host.
  std::unique_ptr<RawClient> remote_robot(const ServedGraph& model) {
    auto robot = client();
    upload(*robot, model);
    divide(*robot, model, 7);
    return robot;
  }
  static void send_all(RawClient& robot, const ServedGraph& model, std::uint64_t inference,
                       const std::vector<std::byte>& input) {
    for (const wire::FrameHeader& header : headers(model, inference, input.size())) {
      robot.send(header, part(input, header));
    }
  }
  static std::vector<wire::FrameHeader> headers(const ServedGraph& model, std::uint64_t inference, std::size_t bytes) {
    std::vector<wire::FrameHeader> list;
    for (std::size_t offset = 0; offset < bytes; offset += wire::kMaxDataBytes) {
      wire::FrameHeader header;
      header.kind = wire::FrameKind::kTensor;
      header.id = inference;
      header.tensor = model.graph.inputs.front();
      header.rows_end = static_cast<std::int32_t>(model.graph.tensors.front().shape.front());
      header.message_bytes = static_cast<std::uint32_t>(bytes);
      header.offset = offset;
      list.push_back(header);
    }
    return list;
  }
  static void lend_input(RawClient& robot, const ServedGraph& model, std::uint64_t inference,
                         const std::vector<std::byte>& input) {
    for (const wire::FrameHeader& header : headers(model, inference, input.size())) {
      robot.lend(header, part(input, header));
    }
  }
  // `send` sends a whole input.
  template <typename Send>
  static void expect_late_rows_to_be_dropped(RawClient& robot, const ServedGraph& model, const Send& send) {
    const auto input = model.input(3);
    for (std::uint64_t inference = 1; inference <= 20; ++inference) {  // more than the memory holds
      robot.send(wire::Run{1, inference, 7, 0});
      robot.send(wire::Cancel{inference});
      robot.expect<wire::Done>();
      send(robot, model, inference, input);
    }
    robot.send(wire::Run{1, 21, 7, 0});
    send(robot, model, 21, input);
    EXPECT_EQ(answer(robot, 21), model.expected(input));
  }
  static std::span<const std::byte> part(const std::vector<std::byte>& input, const wire::FrameHeader& header) {
    return std::span(input).subspan(header.offset, std::min(wire::kMaxDataBytes, input.size() - header.offset));
  }
};

TEST_F(SharedMemory, RowsOfARobotOnThisHostNeverEnterTheConnection) {
  start();
  const ServedGraph model(large_layers());
  auto robot = local_robot(model);
  const ServerCounts before = server_->counts();
  for (std::uint64_t inference = 1; inference <= 20; ++inference) {  // several times around the memory
    const auto input = model.input(inference);
    robot->send(wire::Run{1, inference, 7, 0});
    lend_input(*robot, model, inference, input);
    ASSERT_EQ(answer(*robot, inference), model.expected(input)) << inference;
  }
  EXPECT_GE(robot->lent(), 20);
  const ServerCounts after = server_->counts();
  EXPECT_LT(after.bytes_in - before.bytes_in, model.input(1).size());
  EXPECT_LT(after.bytes_out - before.bytes_out, model.input(1).size());
}

TEST_F(SharedMemory, ARobotOnAnotherHostGetsTheSameThroughItsConnection) {
  start();
  const ServedGraph model(large_layers());
  auto robot = remote_robot(model);
  for (std::uint64_t inference = 1; inference <= 20; ++inference) {
    const auto input = model.input(inference);
    robot->send(wire::Run{1, inference, 7, 0});
    send_all(*robot, model, inference, input);
    ASSERT_EQ(answer(*robot, inference), model.expected(input)) << inference;
  }
  EXPECT_EQ(robot->lent(), 0);
  EXPECT_GT(server_->counts().bytes_in, 20 * model.input(1).size());
}

TEST_F(SharedMemory, RowsOfACancelledInferenceAreDroppedWhereTheyWereAssembled) {
  start();
  const ServedGraph model(large_layers());
  auto robot = remote_robot(model);
  expect_late_rows_to_be_dropped(*robot, model, send_all);
}

TEST_F(SharedMemory, NothingIsOfferedToAClientThatComesThroughARelay) {
  start();
  const ServedGraph model(chain_of_layers(4, 2));
  for (const int port_there : {0, 1}) {  // of a client that does not map memory, and of one behind another port
    auto robot = stranger();
    const std::uint16_t port = port_there == 0 ? std::uint16_t{0} : static_cast<std::uint16_t>(robot->port() ^ 1U);
    robot->send(wire::Hello{"test", "robot", kRulesVersion, port});
    robot->expect<wire::Welcome>();
    upload(*robot, model);
    robot->send(wire::Ping{5});
    while (const auto received = robot->next()) {
      const wire::Message message = wire::decode(received->payload);
      ASSERT_FALSE(std::holds_alternative<wire::Offer>(message));
      if (std::holds_alternative<wire::Pong>(message)) break;
    }
  }
}

TEST_F(SharedMemory, LentRowsAfterTheEndOfAnInferenceDoNotHarmTheWorker) {
  start();
  const ServedGraph model(large_layers());
  auto robot = local_robot(model);
  const auto input = model.input(3);
  for (std::uint64_t inference = 1; inference <= 5; ++inference) {
    robot->send(wire::Run{1, inference, 7, 1'000});  // a millisecond, which is over before rows come
    EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kTimeout);
    const wire::FrameHeader last = headers(model, inference, input.size()).back();  // without those before it
    robot->lend(last, part(input, last));
  }
  robot->send(wire::Run{1, 6, 7, 0});
  lend_input(*robot, model, 6, input);
  EXPECT_EQ(answer(*robot, 6), model.expected(input));
  EXPECT_EQ(server_->counts().workers_lost, 0U);
}

TEST_F(SharedMemory, LentRowsOfAnInferenceThatIsOverAreReleased) {
  start();
  const ServedGraph model(large_layers());
  auto robot = local_robot(model);
  expect_late_rows_to_be_dropped(*robot, model, lend_input);
}

TEST_F(SharedMemory, LendingWithoutMappingEndsTheConnection) {
  start();
  const ServedGraph model(large_layers());
  auto robot = local_robot(model, /*maps=*/false);
  const auto input = model.input(1);
  robot->send(wire::Run{1, 1, 7, 0});
  const auto header = headers(model, 1, input.size()).front();
  robot->lend(header, part(input, header));
  EXPECT_EQ(robot->expect<wire::Failed>().kind, ErrorKind::kProtocol);
  EXPECT_TRUE(robot->is_closed());
}

TEST_F(SharedMemory, APlaceOutsideTheMemoryReachesNothing) {
  start();
  const ServedGraph model(large_layers());
  auto robot = local_robot(model);
  const auto input = model.input(1);
  robot->send(wire::Run{1, 1, 7, 0});
  const auto header = headers(model, 1, input.size()).front();
  robot->send_bytes(wire::make_frame(header, wire::LentPayload{UINT64_MAX - 100, wire::kMaxDataBytes}));
  robot->send(wire::Ping{3});
  EXPECT_EQ(robot->expect<wire::Pong>().token, 3U);  // the server is not harmed
  auto other = remote_robot(model);
  other->send(wire::Run{1, 1, 7, 0});
  send_all(*other, model, 1, input);
  EXPECT_EQ(answer(*other, 1), model.expected(input));
}

}  // namespace
}  // namespace atl::infer::test
