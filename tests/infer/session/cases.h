// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/infer/session/session.h"
#include "scripted_server.h"
#include "tests/support/graph_text.h"

namespace atl::infer::test {

/// Layers by rows, and a last one that needs all rows. The robot takes `robot` seconds for all, the server a hundredth.
inline plan::OperatorGraph layers_of(double robot, std::int64_t rows = 16, std::int64_t row_bytes = 500) {
  plan::OperatorGraph graph;
  const auto by_rows = [](Region region) { return region; };
  graph.operators.push_back({"input", rows, rows * row_bytes, {}, {}, {}});
  for (int i = 0; i < 6; ++i) {
    const double each = robot / 7 / static_cast<double>(rows);
    graph.operators.push_back(
        {"layer", rows, rows * row_bytes * (i < 3 ? 4 : 1), {0, each}, {0, each / 100}, {{i, by_rows}}});
  }
  graph.operators.push_back({"global", 1, 40, {robot / 7, 0}, {robot / 700, 0}, {{6, {}}}});
  graph.outputs = {7};
  return graph;
}

/// Threads of this process.
inline std::size_t threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

class SessionTest : public testing::Test {
 protected:
  explicit SessionTest(double robot_seconds = 0.03) { use(layers_of(robot_seconds)); }

  void use(const plan::OperatorGraph& layers, std::size_t weight_bytes = 0) {
    register_layer_rule();
    graph_ = modelled_graph(layers);
    std::string header = "{}";
    if (weight_bytes > 0) {
      header = R"({"_pad0":{"dtype":"U8","shape":[)" + std::to_string(weight_bytes) + R"(],"data_offsets":[0,)" +
               std::to_string(weight_bytes) + "]}}";
    }
    weights_.assign(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) weights_[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
    weights_ += header + std::string(weight_bytes, 'w');
  }

  Bundle bundle() const {
    const auto owner = std::make_shared<std::string>(weights_);
    return make_bundle(to_json(graph_), {as_byte_span(*owner), owner}, "test");
  }

  SessionOptions options(const std::string& address) const {
    SessionOptions made;
    made.profile = modelled_profile(graph_, Machine::kRobot);
    if (address.empty()) return made;
    ClientOptions client;
    client.server = address;
    client.credentials = credentials_;
    client.name = "robot";
    client.silence = std::chrono::seconds(5);
    client.least_backoff = std::chrono::milliseconds(10);
    client.most_backoff = std::chrono::milliseconds(50);
    made.server = client;
    return made;
  }
  /// Options of a session that leaves everything to the server and waits for it.
  SessionOptions patient(const std::string& address, std::chrono::seconds patience) const {
    SessionOptions made = options(address);
    made.policy = "offload";
    made.hedge = Hedge::kNever;
    made.patience = patience;
    return made;
  }
  std::unique_ptr<Session> session(SessionOptions made, double speed = 1) const {
    return std::make_unique<Session>(std::move(made), bundle(),
                                     std::make_shared<ModelledRunner>(Machine::kRobot, speed));
  }

  std::vector<std::byte> input(std::uint64_t seed) const {
    return modelled_input(graph_.tensors.at(static_cast<std::size_t>(graph_.inputs.front())), seed);
  }
  /// Runs one inference and compares it with the outputs of one machine alone.
  Outcome run(Session& session, std::uint64_t seed, std::optional<std::chrono::duration<double>> deadline = {}) const {
    const std::vector<std::byte> given = input(seed);
    const HostBytes bytes{given, nullptr};
    Outcome outcome = session.run({&bytes, 1}, deadline);
    EXPECT_EQ(outcome.outputs.size(), 1U);
    const std::vector<std::byte> got(outcome.outputs.at(0).bytes.begin(), outcome.outputs.at(0).bytes.end());
    EXPECT_EQ(got, expected(given)) << "by plan " << outcome.plan << ", " << to_string(outcome.origin);
    return outcome;
  }
  std::vector<std::byte> expected(const std::vector<std::byte>& given) const {
    Session alone({.profile = modelled_profile(graph_, Machine::kRobot)}, bundle(),
                  std::make_shared<ModelledRunner>(Machine::kRobot, 0));
    const HostBytes bytes{given, nullptr};
    const Outcome outcome = alone.run({&bytes, 1});
    return {outcome.outputs.at(0).bytes.begin(), outcome.outputs.at(0).bytes.end()};
  }
  /// Waits for the server, even if it has refused before.
  static bool wait(const Session& session, std::chrono::seconds limit = std::chrono::seconds(20)) {
    for (const Deadline until = Deadline::after(limit);;) {
      try {
        return session.wait_until_ready(until);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRefused || until.expired()) throw;
        std::this_thread::yield();
      }
    }
  }

  const std::shared_ptr<const transport::Credentials> credentials_ =
      transport::Credentials::of_key(as_byte_span("a key for tests of 16 or more bytes"));
  Graph graph_;
  std::string weights_;
};

}  // namespace atl::infer::test
