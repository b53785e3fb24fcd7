// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>

#include "atoll/core/bytes.h"
#include "atoll/transport/stream/stream_listener.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;

class IgnoringOwner : public LinkOwner {
 public:
  void on_lost(const Error&) override {}
  void on_message(const wire::Message&) override {}
  std::optional<wire::Ack> on_tensor(const wire::FrameHeader&, std::span<const std::byte>) override { return {}; }
};

// Waits until the status contains `words`, at most 20 s.
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
  struct Seen {
    std::atomic<int> tries = 0;
    std::latch first{1};
  };
  const auto seen = std::make_shared<Seen>();
  const auto connect = [seen](const std::string&, std::uint16_t, std::chrono::milliseconds) -> Fd {
    if (++seen->tries == 1) throw std::runtime_error("something odd");
    seen->first.wait();
    throw Error(ErrorKind::kPeerLost, "connection refused");
  };
  IgnoringOwner owner;
  Client client(options, {}, owner, connect);
  client.start();
  EXPECT_TRUE(says(client, "lost: something odd"));
  EXPECT_EQ(client.status().state, LinkState::kLost);
  seen->first.count_down();
  EXPECT_TRUE(says(client, "lost: connection refused"));
  EXPECT_GE(seen->tries, 2);
  client.stop();
}

TEST(Client, StoppingDoesNotWaitForTheNameService) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  options.credentials = transport::Credentials::of_key(as_byte_span("a key for tests of 16 or more bytes"));
  struct Service {
    std::latch asked{1};
    std::latch answers{1};
  };
  const auto service = std::make_shared<Service>();
  const auto connect = [service](const std::string&, std::uint16_t, std::chrono::milliseconds) -> Fd {
    service->asked.count_down();
    service->answers.wait();
    throw Error(ErrorKind::kUnavailable, "unknown host");
  };
  IgnoringOwner owner;
  Client client(options, {}, owner, connect);
  client.start();
  service->asked.wait();
  const std::future<void> stopped = std::async(std::launch::async, [&client] { client.stop(); });
  EXPECT_EQ(stopped.wait_for(20s), std::future_status::ready);
  service->answers.count_down();
}

// Sends requests forever, and reads nothing once the model is to be opened.
class Flood final : public transport::StreamListener::Owner, public transport::SecureStream::Owner {
 public:
  explicit Flood(std::shared_ptr<const transport::Credentials> credentials)
      : credentials_(std::move(credentials)), loop_("flood") {
    loop_.run_and_wait([&] { listener_ = std::make_unique<transport::StreamListener>(loop_, *this, "127.0.0.1", 0); });
  }
  ~Flood() override {
    loop_.run_and_wait([&] {
      stream_.reset();
      listener_.reset();
    });
  }
  std::string address() const { return listener_->address(); }

 private:
  void on_connection(Fd socket, const std::string& peer) override {
    if (stream_) return;  // once is enough
    transport::SecureStream::Options options;
    options.name = peer;
    stream_ = std::make_unique<transport::SecureStream>(loop_, *this, std::move(socket),
                                                        transport::SecureStream::Role::kServer, credentials_, options);
  }
  void on_open(transport::SecureStream& stream) override {
    stream.pause_on_loop();
    const auto pings = std::make_shared<std::vector<std::byte>>();
    const wire::FrameBytes ping = wire::make_frame(wire::Ping{7});
    for (int i = 0; i < 1000; ++i) pings->insert(pings->end(), ping->begin(), ping->end());
    for (int i = 0; i < 300; ++i) stream.send_on_loop({*pings, pings});
  }
  void on_bytes(transport::SecureStream&, std::span<const std::byte>) override {}
  void on_drained(transport::SecureStream&) override {}
  void on_closed(transport::SecureStream&, const std::optional<Error>&) override {}

  const std::shared_ptr<const transport::Credentials> credentials_;
  std::unique_ptr<transport::StreamListener> listener_;
  std::unique_ptr<transport::SecureStream> stream_;
  Loop loop_;
};

TEST(Client, AServerThatAsksAndDoesNotReadIsNotAnsweredForEver) {
  ClientOptions options;
  options.credentials = transport::Credentials::of_key(as_byte_span("a key for tests of 16 or more bytes"));
  Flood flood(options.credentials);
  options.server = flood.address();
  options.silence = options.least_backoff = options.most_backoff = 60s;
  IgnoringOwner owner;
  Client client(options, {}, owner);
  client.start();
  EXPECT_TRUE(says(client, "sends requests but does not read the replies"));
  client.stop();
}

}  // namespace
}  // namespace atl::infer
