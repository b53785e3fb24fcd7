// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "atoll/core/bytes.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;

class Nobody : public Client::Owner {
 public:
  void on_ready(const wire::Ready&) override {}
  void on_lost(const Error&) override {}
  void on_message(const wire::Message&) override {}
  std::optional<wire::Ack> on_tensor(const wire::FrameHeader&, std::span<const std::byte>) override { return {}; }
};

// Until the status says this, for long at the most.
bool says(const Client& client, const std::string& words) {
  const auto limit = Deadline::after(20s);
  while (!limit.expired()) {
    if (client.status().text.find(words) != std::string::npos) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(Client, WhateverIsThrownWhileItConnectsIsSaidAndTriedAgain) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  options.credentials = transport::Credentials::of_key(as_byte_span("a key for tests of 16 or more bytes"));
  options.least_backoff = 1ms;
  options.most_backoff = 1ms;
  std::atomic<int> tries = 0;
  std::latch seen(1);
  const auto connect = [&](const std::string&, std::uint16_t, std::chrono::milliseconds) -> Fd {
    if (++tries == 1) throw std::runtime_error("something odd");
    seen.wait();
    throw Error(ErrorKind::kPeerLost, "nobody is there");
  };
  Nobody nobody;
  Client client(options, {}, nobody, connect);
  client.start();
  EXPECT_TRUE(says(client, "lost: something odd"));
  EXPECT_EQ(client.status().state, LinkState::kLost);
  seen.count_down();
  EXPECT_TRUE(says(client, "lost: nobody is there"));
  EXPECT_GE(tries, 2);
  client.stop();
}

}  // namespace
}  // namespace atl::infer
