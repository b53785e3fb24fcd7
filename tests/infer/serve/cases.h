// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/serve/server.h"
#include "tests/infer/serve/raw_client.h"
#include "tests/support/graph_text.h"
#include "tests/support/modelled_runner.h"

namespace atl::infer::test {

/// A chain of layers of `rows` rows, the first and last of which are cheap to send.
inline plan::OperatorGraph chain_of_layers(std::int64_t rows, int layers, double seconds = 1e-4) {
  plan::OperatorGraph graph;
  const auto by_rows = [](Region region) { return region; };
  graph.operators.push_back({"input", rows, rows * 64, {}, {}, {}});
  for (int i = 0; i < layers; ++i) {
    const plan::RowCost cost{0, seconds / static_cast<double>(rows)};
    graph.operators.push_back({"layer", rows, rows * 256, cost, cost, {{i, by_rows}}});
  }
  graph.outputs = {layers};
  return graph;
}

/// A modelled graph with a client's messages about it.
struct ServedGraph {
  explicit ServedGraph(const plan::OperatorGraph& operators_like)
      : graph(modelled_graph(operators_like)), text(to_json(graph)) {
    register_layer_rule();
    operators = operators_of(graph, graph.inputs.front(), 0);
    const std::string all = text + weights;
    EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(hash.data()), nullptr, EVP_sha256(), nullptr);
  }

  wire::Open open(std::uint64_t model) const {
    wire::Open message;
    message.model = model;
    message.hash = hash;
    message.graph_bytes = text.size();
    message.weight_bytes = weights.size();
    return message;
  }
  /// All on the server, or its first `cut` rows of everything.
  wire::Divide divide(std::uint64_t model, std::uint32_t division, std::int64_t cut = -1) const {
    wire::Divide message;
    message.model = model;
    message.division = division;
    message.plan.input_tensor = graph.inputs.front();
    message.plan.dim = 0;
    for (const Operators::Operator& each : operators.operators) {
      const std::int64_t end = cut < 0 ? each.rows : std::min(cut, each.rows);
      plan::Share share{{end, each.rows}, {0, end}};
      if (each.node < 0) share = {{0, each.rows}, {}};
      if (share.robot.is_empty()) share.robot = {};
      message.plan.shares.push_back(share);
    }
    return message;
  }
  std::vector<std::byte> input(std::uint64_t seed) const {
    return modelled_input(graph.tensors.at(static_cast<std::size_t>(graph.inputs.front())), seed);
  }
  /// The outputs of one machine alone.
  std::vector<std::byte> expected(const std::vector<std::byte>& given) const {
    auto runner = std::make_shared<ModelledRunner>(Machine::kRobot, 0);
    const LoadedModel model(graph, {}, runner);
    Inference inference(model, operators);
    const int tensor = graph.inputs.front();
    inference.set_input(tensor,
                        runner->from_host(graph.tensors.at(static_cast<std::size_t>(tensor)), {given, nullptr}));
    std::vector<std::vector<Region>> held(graph.tensors.size());
    held.at(static_cast<std::size_t>(tensor)) = {rows_of(graph, operators, tensor)};
    inference.run(rest_of(graph, operators, held), no_exchange());
    const HostBytes out = runner->to_host(inference.whole(output()));
    return {out.bytes.begin(), out.bytes.end()};
  }
  int output() const { return std::get<TensorId>(graph.outputs.front()).id; }

  Graph graph;
  Operators operators;
  std::string text;
  std::string weights = std::string("\x02\0\0\0\0\0\0\0{}", 10);  // a safetensors file without tensors
  wire::BundleHash hash{};
};

/// A server of modelled graphs with a cache folder of its own.
class ServeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "atoll-serve-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.cache_folder = folder_ + "/models";
    options_.worker_program = ATOLL_MODELLED_WORKER;
    options_.device = "0";
    options_.worker_memory_bytes = 0;
    options_.credentials = credentials_;
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void start() { server_ = std::make_unique<Server>(options_); }
  std::unique_ptr<RawClient> stranger() { return std::make_unique<RawClient>(server_->address(), credentials_); }
  std::unique_ptr<RawClient> client() {
    auto made = stranger();
    made->send(wire::Hello{"test", "robot"});
    made->expect<wire::Welcome>();
    return made;
  }
  /// Sends what the server asks for, until the model is ready.
  static void upload(RawClient& client, const ServedGraph& model, std::uint64_t number = 1) {
    client.send(model.open(number));
    const auto message = client.next_message();
    ASSERT_TRUE(message);
    if (std::holds_alternative<wire::Ready>(*message)) return;
    ASSERT_TRUE(std::holds_alternative<wire::Need>(*message)) << wire::name_of(*message);
    send_missing(client, model, number, std::get<wire::Need>(*message));
    client.expect<wire::Ready>();
  }
  static void send_missing(RawClient& client, const ServedGraph& model, std::uint64_t number, const wire::Need& need) {
    if (need.graph) client.send(wire::GraphText{number, model.text});
    const auto rest = as_byte_span(model.weights).subspan(need.weights_from);
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kWeights;
    header.id = number;
    header.offset = need.weights_from;
    client.send(header, rest);
  }
  static void divide(RawClient& client, const ServedGraph& model, std::uint32_t division, std::uint64_t number = 1) {
    client.send(model.divide(number, division));
    client.expect<wire::Divided>();
  }
  /// Sends Run and the whole input; the answer has to be fetched.
  static void begin(RawClient& client, const ServedGraph& model, std::uint64_t inference, std::uint32_t division,
                    const std::vector<std::byte>& input, std::uint64_t number = 1) {
    client.send(wire::Run{number, inference, division, 0});
    send_input(client, model, inference, input);
  }
  static void send_input(RawClient& client, const ServedGraph& model, std::uint64_t inference,
                         const std::vector<std::byte>& input) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kTensor;
    header.id = inference;
    header.tensor = model.graph.inputs.front();
    header.rows_end = static_cast<std::int32_t>(model.graph.tensors.front().shape.front());
    header.message_bytes = static_cast<std::uint32_t>(input.size());
    client.send(header, input);
  }
  /// The rows that come until Done.
  static std::vector<std::byte> answer(RawClient& client, std::uint64_t inference) {
    std::vector<std::byte> bytes;
    for (;;) {
      const auto received = client.next();
      if (!received) throw std::runtime_error("the server has closed");
      if (received->header.kind == wire::FrameKind::kTensor) {
        EXPECT_EQ(received->header.id, inference);
        EXPECT_EQ(received->header.offset, bytes.size());
        bytes.insert(bytes.end(), received->payload.begin(), received->payload.end());
        continue;
      }
      const wire::Message message = wire::decode(received->payload);
      if (const auto* failed = std::get_if<wire::Failed>(&message)) throw Error(failed->kind, failed->text);
      if (const auto* done = std::get_if<wire::Done>(&message)) {
        EXPECT_EQ(done->inference, inference);
        return bytes;
      }
    }
  }

  const std::shared_ptr<const transport::Credentials> credentials_ =
      transport::Credentials::of_key(as_byte_span("a key for tests of 16 or more bytes"));
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::string folder_;
};

}  // namespace atl::infer::test
