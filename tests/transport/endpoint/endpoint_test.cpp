// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/endpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "atoll/transport/address.h"
#include "atoll/transport/handshake/acceptor.h"
#include "tests/support/log_recorder.h"
#include "tests/support/raw_peer.h"
#include "tests/transport/endpoint/support.h"

namespace atl::test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

int lowest_free_descriptor() {
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(descriptor);
  return descriptor;
}

TEST(Endpoint, WrongOptionsAreNamed) {
  RecordingObserver observer;
  auto options = tcp_options(0);
  options.tcp_window_bytes = 100000;
  EXPECT_EQ(error_of([&] { Endpoint(options, observer); }).kind(), ErrorKind::kInvalidArgument);
  options = tcp_options(0);
  options.port_first = 5000;
  options.port_last = 4000;
  const Error range = error_of([&] { Endpoint(options, observer); });
  EXPECT_EQ(range.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(contains(range, "5000-4000 (ATOLL_PORTS)")) << range.what();
  options = tcp_options(0);
  options.job.assign(1000, 'x');
  EXPECT_EQ(error_of([&] { Endpoint(options, observer); }).kind(), ErrorKind::kInvalidArgument);
  options = tcp_options(0);
  options.name.assign(1000, 'x');
  EXPECT_EQ(error_of([&] { Endpoint(options, observer); }).kind(), ErrorKind::kInvalidArgument);
  options = tcp_options(0);
  options.advertised_address.clear();
  options.interface = "nosuchinterface0";
  const Error interface = error_of([&] { Endpoint(options, observer); });
  EXPECT_EQ(interface.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(interface, "nosuchinterface0")) << interface.what();
}

TEST(Endpoint, TakesAPortOfTheRangeAndNamesATakenRange) {
  RecordingObserver observer;
  const TcpListener taken = listen_tcp(0, 0);
  auto options = tcp_options(0);
  options.port_first = taken.port;
  options.port_last = taken.port;
  const Error error = error_of([&] { Endpoint(options, observer); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(error, std::to_string(taken.port) + "-" + std::to_string(taken.port) + " (ATOLL_PORTS)"))
      << error.what();
  EXPECT_TRUE(contains(error, "in use")) << error.what();

  options.port_last = static_cast<std::uint16_t>(std::min(65535, taken.port + 200));
  const Endpoint endpoint(options, observer);
  const auto port = parse_tcp_address(endpoint.address().tcp.front())->port();
  EXPECT_GT(port, options.port_first);
  EXPECT_LE(port, options.port_last);
}

TEST(Endpoint, AnExhaustedDescriptorTableIsNamedAndLeavesNothing) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RecordingObserver observer;
    const int lowest = lowest_free_descriptor();
    int result = 0;
    for (int spare = 1; spare < 32; ++spare) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = static_cast<rlim_t>(lowest) + static_cast<rlim_t>(spare);
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) result = 4;
      try {
        const Endpoint endpoint(tcp_options(0), observer);
        if (spare < 4) result = 1;  // it cannot have so few
        break;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kUnavailable || !contains(error, "ulimit -n")) result = 2;
        if (result == 2) std::fprintf(stderr, "%s\n", error.what());
      }
      if (lowest_free_descriptor() != lowest) result = 3;  // something was left open
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

/// Leaves this process no descriptor above the lowest `spare` free ones, until it is destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(lowest_free_descriptor()) + static_cast<rlim_t>(spare);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Endpoint, WithoutDescriptorsALinkCannotOpenAndSaysWhy) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  const DescriptorLimit limit(0);
  first.link(second.address());
  const auto failure = first_observer.wait_for_failure();
  EXPECT_EQ(failure.error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(contains(failure.error, "ulimit -n")) << failure.error.what();
}

TEST(Endpoint, WithoutDescriptorsConnectionsWaitUntilThereAreSome) {
  const LogRecorder lines;
  RecordingObserver first_observer, second_observer;
  auto options = tcp_options(1);
  options.heartbeat = 1s;  // it looks again several times per heartbeat
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(options, second_observer);
  {
    const DescriptorLimit limit(1);
    const RawPeer takes_the_last(second.address().tcp.front());
    EXPECT_TRUE(lines.wait_for("cannot accept a connection; raise the limit of open files")) << lines.text();
  }
  expect_connected(first, second);
}

TEST(Endpoint, StrangersDoNotDisturbPeers) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  const std::string address = second.address().tcp.front();
  RawPeer silent(address);
  RawPeer half(address);
  half.send(std::as_bytes(std::span("ATOL", 4)));
  RawPeer garbage(address);
  garbage.send(std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: atoll\r\n\r\n", 31)));
  EXPECT_TRUE(garbage.wait_for_end());
  RawPeer zeros(address);
  zeros.send(std::vector<std::byte>(100000));
  EXPECT_TRUE(zeros.wait_for_end());
  expect_connected(first, second);
  EXPECT_EQ(second.links().size(), 1U);
  EXPECT_EQ(first_observer.failure_count() + second_observer.failure_count(), 0U);
}

TEST(Endpoint, SilentStrangersAreClosedInTime) {
  RecordingObserver observer;
  auto options = tcp_options(0);
  options.connect_timeout = 300ms;
  options.heartbeat = 1s;
  const Endpoint endpoint(options, observer);
  const auto start = Clock::now();
  RawPeer silent(endpoint.address().tcp.front());
  EXPECT_TRUE(silent.wait_for_end());
  EXPECT_GE(Clock::now() - start, 250ms);
  EXPECT_LT(Clock::now() - start, 300ms + 2s);
}

TEST(Endpoint, MoreHalfOpenConnectionsThanItTakesOnlyDelayPeers) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(tcp_options(0), first_observer);
  auto options = tcp_options(1);
  options.connect_timeout = 500ms;  // how long a stranger may be silent
  options.heartbeat = 1s;
  Endpoint second(options, second_observer);
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 530; ++i) strangers.emplace_back(second.address().tcp.front());
  expect_connected(first, second);
}

TEST(Endpoint, ConnectionsThatComeBeforeTheKeyWaitForIt) {
  RecordingObserver first_observer, second_observer;
  const auto key = tcp_options(0).key;
  auto options = tcp_options(0);
  options.key.clear();
  Endpoint first(options, first_observer);
  options.name = "rank 1";
  Endpoint second(options, second_observer);
  Link& link = first.link(second.address());
  first.set_key(key);
  RawPeer later(second.address().tcp.front());  // after the first one's connection in the listener's queue
  EXPECT_EQ(link.state(), LinkState::kConnecting);
  second.set_key(key);
  expect_connected(first, second);
}

TEST(Endpoint, AKeyMustNotBeEmpty) {
  RecordingObserver observer;
  Endpoint endpoint(tcp_options(0), observer);
  EXPECT_EQ(error_of([&] { endpoint.set_key({}); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { endpoint.link(endpoint.address()); }).kind(), ErrorKind::kInvalidArgument);
}

TEST(Endpoint, ShutDownAndAbortedEndpointsRefuse) {
  RecordingObserver first_observer, second_observer;
  Endpoint first(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  expect_connected(first, second);
  first.abort();
  first.abort();
  first.shutdown(Deadline::after(1s));
  Link& link = first.link(silent_peer("rank 9"));
  wait_until("the link's end", [&] { return link.state() == LinkState::kClosed; });
  const Error error = error_of([&] { link.channel({}).front(); });
  EXPECT_EQ(error.kind(), ErrorKind::kAborted);
  EXPECT_EQ(second_observer.wait_for_failure().error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(first_observer.failure_count(), 0U);
}

TEST(Endpoint, AnObserverMayAbort) {
  struct Aborting : RecordingObserver {
    Endpoint* endpoint = nullptr;
    void on_link_failed(Link& link, const Error& error, bool closed_in_order) override {
      endpoint->abort();
      RecordingObserver::on_link_failed(link, error, closed_in_order);
    }
  } observer;
  RecordingObserver second_observer, third_observer;
  Endpoint first(tcp_options(0), observer);
  observer.endpoint = &first;
  Endpoint second(tcp_options(1), second_observer);
  Endpoint third(tcp_options(2), third_observer);
  expect_connected(first, second);
  expect_connected(first, third);
  second.abort();
  EXPECT_EQ(observer.wait_for_failure().error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(third_observer.wait_for_failure().error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(observer.failure_count(), 1U);
}

TEST(Endpoint, MayBeDestroyedInAForkedChild) {
  RecordingObserver first_observer, second_observer;
  auto first = std::make_unique<Endpoint>(tcp_options(0), first_observer);
  Endpoint second(tcp_options(1), second_observer);
  expect_connected(*first, second);
  first->link(silent_peer("rank 9"));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    first->abort();
    first.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
  expect_connected(*first, second);
  EXPECT_EQ(second_observer.failure_count(), 0U);
}

}  // namespace
}  // namespace atl::test
