// SPDX-License-Identifier: Apache-2.0
#include "tests/support/relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;  // that any wait here may take

// Takes one connection and keeps what comes.
class Sink {
 public:
  Sink() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = *transport::parse_ip("127.0.0.1", 0);
    if (::bind(listener_.get(), any.get(), any.length) != 0 || ::listen(listener_.get(), 4) != 0) {
      throw std::runtime_error("sink: cannot listen");
    }
    thread_ = std::thread([this] { take(); });
  }
  ~Sink() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::string address() const { return to_string(transport::local_address(listener_.get())); }
  // Returns what has arrived once there are that many bytes, or the connection has ended.
  std::vector<std::byte> wait_for(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLimit, [&] { return has_ended_ || there_.size() >= bytes; }));
    return there_;
  }
  bool wait_for_end() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return has_ended_; });
  }

 private:
  void take() {
    const Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<std::byte> piece(1 << 16);
    for (;;) {
      const ssize_t got = connection ? ::recv(connection.get(), piece.data(), piece.size(), 0) : 0;
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
      if (got <= 0) {
        has_ended_ = true;
        return;
      }
      there_.insert(there_.end(), piece.begin(), piece.begin() + got);
    }
  }

  Fd listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> there_;
  bool has_ended_ = false;
  std::thread thread_;
};

Fd connected(const Relay& relay) {
  const auto address = *transport::parse_tcp_address(relay.address());
  Fd made(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(made.get(), address.get(), address.length), 0);
  return made;
}

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

void send_all(const Fd& connection, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(sent, 0);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

TEST(Relay, NothingIsEarlyHoweverLongThePathWasIdle) {
  Sink sink;
  const Relay relay(sink.address(), {1e6, 2ms, true});
  const Fd connection = connected(relay);
  const std::vector<std::byte> message = numbered(20'000);
  for (std::size_t i = 1; i <= 6; ++i) {
    const Clock::time_point begin = Clock::now();
    send_all(connection, message);
    EXPECT_EQ(sink.wait_for(i * message.size()).size(), i * message.size());
    EXPECT_GE(seconds_since(begin), 0.022);
  }
}

TEST(Relay, AMessageThatFillsAPieceGivesTheNextOneNoCredit) {
  Sink sink;
  const Relay relay(sink.address(), {1e6, 0us, false});
  const Fd connection = connected(relay);
  const std::vector<std::byte> message = numbered(std::size_t{20} * 1448);
  for (std::size_t i = 1; i <= 4; ++i) {
    const Clock::time_point begin = Clock::now();
    send_all(connection, message);
    EXPECT_EQ(sink.wait_for(i * message.size()).size(), i * message.size());
    EXPECT_GE(seconds_since(begin), 0.0289);
    std::this_thread::sleep_for(50ms);  // the path is idle
  }
}

TEST(Relay, BytesStayAsTheyAre) {
  Sink sink;
  const Relay relay(sink.address(), {2e7, 0us, false});
  const Fd connection = connected(relay);
  const std::vector<std::byte> message = numbered(1'000'003);
  send_all(connection, message);
  EXPECT_TRUE(sink.wait_for(message.size()) == message);
}

TEST(Relay, KeepsTheRatesOfARecord) {
  Sink sink;
  Relay relay(sink.address(), {1e9, 0us, true});
  const plan::Trace record(0.05, {0, 1e6, 0, 2e6});
  const Clock::time_point begin = Clock::now();
  relay.replay(record, begin);
  const Fd connection = connected(relay);
  const std::vector<std::byte> message = numbered(180'000);
  send_all(connection, message);
  EXPECT_TRUE(sink.wait_for(message.size()) == message);
  // 50 kB in the second bin, 100 kB in the fourth, the rest in the second one of the next turn.
  EXPECT_GE(seconds_since(begin), record.end(plan::Lane::kUp, 0, 180'000));
  EXPECT_GE(record.end(plan::Lane::kUp, 0, 180'000), 0.25);
  EXPECT_THROW(relay.replay(plan::Trace(1, {0, 0}), begin), std::runtime_error);
}

TEST(Relay, CutsWithinAMessage) {
  Sink sink;
  Relay relay(sink.address());
  const Fd connection = connected(relay);
  const std::vector<std::byte> first = numbered(500);
  send_all(connection, first);
  EXPECT_EQ(sink.wait_for(500).size(), 500U);
  relay.cut_after(1234, Relay::Cut::kEnd);
  const std::vector<std::byte> message = numbered(3000);
  ::send(connection.get(), message.data(), message.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(sink.wait_for_end());
  EXPECT_EQ(sink.wait_for(0).size(), 500U + 1234U);
  EXPECT_EQ(relay.forwarded_bytes(), 500U + 1234U);
}

}  // namespace
}  // namespace atl::test
