// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/stream_listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <fcntl.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/log.h"
#include "atoll/transport/address.h"
#include "atoll/transport/stream/host_port.h"
#include "tests/support/no_descriptors.h"
#include "tests/transport/endpoint/support.h"

namespace atl::test {
namespace {

using std::chrono::milliseconds;
using namespace transport;

class Connections : public StreamListener::Owner {
 public:
  void on_connection(Fd socket, const std::string& peer) override {
    EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
    const std::lock_guard lock(mutex_);
    sockets_.push_back(std::move(socket));
    peers_.push_back(peer);
    changed_.notify_all();
    if (then) then();
  }
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return sockets_.size() >= count; })) {
      throw Error(ErrorKind::kTimeout, "connections");
    }
    return peers_;
  }

  std::function<void()> then;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fd> sockets_;
  std::vector<std::string> peers_;
};

class Listening : public ::testing::Test {
 protected:
  ~Listening() override {
    loop_.run_and_wait([&] { listener_.reset(); });
  }
  void listen(const std::string& host = "127.0.0.1", std::uint16_t port = 0) {
    loop_.run_and_wait([&] { listener_ = std::make_unique<StreamListener>(loop_, connections_, host, port); });
  }
  Fd connect(const std::string& host = "127.0.0.1") { return connect_tcp(host, listener_->port(), kPatience); }

  Connections connections_;
  Loop loop_{"listener"};
  std::unique_ptr<StreamListener> listener_;
};

TEST_F(Listening, OnAnyPort) {
  listen();
  EXPECT_NE(listener_->port(), 0);
  EXPECT_EQ(listener_->address(), "127.0.0.1:" + std::to_string(listener_->port()));
  const Fd socket = connect();
  EXPECT_EQ(connections_.wait_for(1).front(), to_string(local_address(socket.get())));
  EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
  int no_delay = 0;
  socklen_t length = sizeof no_delay;
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
  EXPECT_NE(no_delay, 0);
}

TEST_F(Listening, OnAName) {
  listen("localhost");
  const Fd socket = connect("localhost");
  EXPECT_EQ(connections_.wait_for(1).size(), 1U);
}

TEST_F(Listening, OnIpv6) {
  try {
    listen("::1");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(listener_->address(), "[::1]:" + std::to_string(listener_->port()));
  const Fd one = connect("::1");
  const Fd two = connect("[::1]");
  EXPECT_EQ(connections_.wait_for(2).front(), to_string(local_address(one.get())));
}

TEST_F(Listening, ToMany) {
  listen();
  std::vector<Fd> sockets;
  for (int i = 0; i < 200; ++i) sockets.push_back(connect());
  EXPECT_EQ(connections_.wait_for(200).size(), 200U);
}

TEST_F(Listening, EndsInsideItsOwnCall) {
  int calls = 0;
  connections_.then = [&] {
    ++calls;
    listener_.reset();
  };
  Fd first;
  Fd second;
  loop_.run_and_wait([&] {  // both wait for the loop
    listener_ = std::make_unique<StreamListener>(loop_, connections_, "127.0.0.1", 0);
    first = connect();
    second = connect();
  });
  connections_.wait_for(1);
  loop_.run_and_wait([] {});
  EXPECT_EQ(calls, 1);
}

TEST_F(Listening, NotOnATakenPort) {
  listen();
  Loop other("other");
  const Error error = error_of(
      [&] { other.run_and_wait([&] { StreamListener(other, connections_, "127.0.0.1", listener_->port()); }); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(error, listener_->address())) << error.what();
  EXPECT_TRUE(contains(error, "another program listens there")) << error.what();
}

TEST_F(Listening, NotOnAHostThatIsNone) {
  const Error unknown = error_of([&] { listen("a..b"); });
  EXPECT_EQ(unknown.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(unknown, "unknown host \"a..b\"")) << unknown.what();
  const Error elsewhere = error_of([&] { listen("192.0.2.1"); });  // reserved for documentation
  EXPECT_EQ(elsewhere.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(elsewhere, "192.0.2.1:0 (this machine has no such address)")) << elsewhere.what();
}

/// Counts lines while it lives.
class CountingSink : public LogSink {
 public:
  CountingSink() { set_log_sink(this); }
  ~CountingSink() override { set_log_sink(nullptr); }
  void write(LogLevel, std::string_view message) override {
    if (message.find("cannot accept a connection") != std::string_view::npos) ++lines;
  }
  std::atomic<int> lines{0};
};

TEST_F(Listening, WaitsForDescriptors) {
  CountingSink sink;
  listen();
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = parse_tcp_address(listener_->address());
  {
    const NoNewDescriptors none;
    EXPECT_EQ(::connect(socket.get(), address->get(), address->length), 0);
    wait_until("the listener has no descriptor", [&] { return sink.lines.load() == 1; });
  }
  EXPECT_EQ(connections_.wait_for(1).size(), 1U);
  EXPECT_EQ(sink.lines.load(), 1);
}

TEST(ConnectTcp, NobodyListens) {
  std::uint16_t port = 0;
  {
    const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = parse_ip("127.0.0.1", 0);
    ASSERT_EQ(::bind(socket.get(), address->get(), address->length), 0);
    port = local_address(socket.get()).port();
    const Error error = error_of([&] { connect_tcp("127.0.0.1", port, kPatience); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_TRUE(contains(error, "127.0.0.1:" + std::to_string(port) + ": Connection refused")) << error.what();
  }
}

TEST(ConnectTcp, ANameThatIsNotKnown) {
  const Error error = error_of([] { connect_tcp("a..b", 1, kPatience); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(error, "a..b")) << error.what();
}

TEST(ConnectTcp, AFullServerIsATimeout) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = parse_ip("127.0.0.1", 0);
  ASSERT_EQ(::bind(listener.get(), address->get(), address->length), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);  // room for one that it has not taken yet
  const std::uint16_t port = local_address(listener.get()).port();
  const Fd first = connect_tcp("127.0.0.1", port, kPatience);
  const Error error = error_of([&] { connect_tcp("127.0.0.1", port, milliseconds(30)); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_TRUE(contains(error, "127.0.0.1:" + std::to_string(port) + " within 30 ms")) << error.what();
}

TEST(HostPort, IsParsed) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const auto& [text, host, port] :
       {Case{"10.0.0.2:4711", "10.0.0.2", 4711}, Case{"server:1", "server", 1}, Case{"[::1]:65535", "::1", 65535},
        Case{"[fe80::1%eth0]:0", "fe80::1%eth0", 0}, Case{"server.example:080", "server.example", 80}}) {
    const HostPort parsed = parse_host_port(text);
    EXPECT_EQ(parsed.host, host) << text;
    EXPECT_EQ(parsed.port, port) << text;
  }
}

TEST(HostPort, IsWrittenAsItIsParsed) {
  for (const std::string text : {"10.0.0.2:4711", "server:1", "[::1]:65535"}) {
    EXPECT_EQ(to_string(parse_host_port(text)), text);
  }
}

TEST(HostPort, OtherTextIsRefused) {
  for (const std::string text :
       {"", ":", "server", "server:", ":4711", "[]:4711", "server:65536", "server:-1", "server:+1", "server: 1",
        "server:1 ", "server:0x1", "::1:4711", "[::1]4711", "[::1:4711", "::1]:4711", "ser ver:1", "server\n:1"}) {
    const Error error = error_of([&] { parse_host_port(text); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << text;
    EXPECT_TRUE(contains(error, "expected HOST:PORT")) << error.what();
  }
  EXPECT_EQ(error_of([] { parse_host_port(std::string(300, 'h') + ":1"); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([] { parse_host_port(std::string("a\0b:1", 5)); }).kind(), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace atl::test
