// SPDX-License-Identifier: Apache-2.0
#include "tests/support/peers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

namespace atl::test {
namespace {

using transport::Endpoint;
using transport::EndpointOptions;
using transport::PeerAddress;

std::string to_string(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> to_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void run_role(int index, const EndpointOptions& options, Meeting& meeting, pid_t other_process, const Role& role) {
  try {
    RecordingObserver observer;
    Endpoint endpoint(options, observer);
    PeerAddress other = PeerAddress::decode(to_bytes(meeting.exchange(to_string(endpoint.address().encode()))));
    Peer peer{index, endpoint, observer, std::move(other), meeting, other_process};
    role(peer);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "peer " << index << ": " << error.what();
  }
}

[[noreturn]] void run_child(const EndpointOptions& options, Fd socket, const Role& role) {
  {
    Meeting meeting(std::move(socket));
    run_role(1, options, meeting, 0, role);
  }
  std::fflush(nullptr);
  ::_exit(testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

void RecordingObserver::on_control(transport::Link&, std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  controls_.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  changed_.notify_all();
}

void RecordingObserver::on_link_failed(transport::Link& link, const Error& error, bool closed_in_order) {
  const std::lock_guard lock(mutex_);
  failures_.push_back({link.peer(), error, closed_in_order, Clock::now()});
  changed_.notify_all();
}

std::vector<std::string> RecordingObserver::wait_for_controls(std::size_t count) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return controls_.size() >= count; })) {
    throw Error(ErrorKind::kTimeout,
                std::to_string(controls_.size()) + " of " + std::to_string(count) + " control messages arrived");
  }
  return controls_;
}

RecordingObserver::Failure RecordingObserver::wait_for_failure(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, limit, [&] { return !failures_.empty(); }))
    throw Error(ErrorKind::kTimeout, "no link failed");
  return failures_.front();
}

std::size_t RecordingObserver::failure_count() const {
  const std::lock_guard lock(mutex_);
  return failures_.size();
}

std::string Meeting::exchange(const std::string& mine) {
  const auto size = static_cast<std::uint32_t>(mine.size());
  std::string out(sizeof(size), '\0');
  std::memcpy(out.data(), &size, sizeof(size));
  out += mine;
  if (::send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(out.size())) {
    throw Error(ErrorKind::kPeerLost, with_errno("the other role has ended", errno));
  }
  std::uint32_t theirs = 0;
  const std::string head = read_exactly(sizeof(theirs));
  std::memcpy(&theirs, head.data(), sizeof(theirs));
  return read_exactly(theirs);
}

std::string Meeting::read_exactly(std::size_t bytes) {
  std::string in(bytes, '\0');
  std::size_t done = 0;
  while (done < bytes) {
    pollfd ready{socket_.get(), POLLIN, 0};
    const int events = ::poll(&ready, 1, std::chrono::milliseconds(kPatience).count());
    if (events < 0 && errno == EINTR) continue;
    if (events == 0) throw Error(ErrorKind::kTimeout, "the other role did not come to the meeting");
    const ssize_t got = ::recv(socket_.get(), in.data() + done, bytes - done, 0);
    if (got <= 0) throw Error(ErrorKind::kPeerLost, "the other role has ended");
    done += static_cast<std::size_t>(got);
  }
  return in;
}

void Meeting::wait_for_end() {
  try {
    read_exactly(1);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPeerLost) throw;
  }
}

transport::Channel& Peer::channel(std::uint32_t number, transport::Bell bell) const {
  return link().channel({.group = 7, .index = number, .bell = bell});
}

void run_peers(PeerMode mode, const std::vector<EndpointOptions>& options, const Role& first, const Role& second,
               Ending ending) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  std::array<Fd, 2> ends{Fd(sockets[0]), Fd(sockets[1])};
  if (mode == PeerMode::kThreads) {
    Meeting theirs(std::move(ends[1]));
    std::thread thread([&] { run_role(1, options[1], theirs, 0, second); });
    {
      Meeting mine(std::move(ends[0]));
      run_role(0, options[0], mine, 0, first);
    }
    thread.join();
    return;
  }
  // The child would close what an Fd holds, so its end travels as a bare number.
  const int theirs = ends[1].release();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) run_child(options[1], Fd(theirs), second);
  ::close(theirs);
  {
    Meeting mine(std::move(ends[0]));
    run_role(0, options[0], mine, child, first);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (ending == Ending::kReturns) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the second process failed, wait status " << status;
  } else {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "wait status " << status;
  }
}

EndpointOptions peer_options(transport::TransportChoice transport, int index) {
  EndpointOptions options;
  options.job = "contract";
  options.key.assign(32, std::byte{42});
  options.name = "rank " + std::to_string(index);
  options.transport = transport;
  options.shm_window_bytes = std::size_t{1} << 16;
  options.tcp_window_bytes = std::size_t{1} << 16;
  options.advertised_address = "127.0.0.1";
  options.heartbeat = std::chrono::seconds(10);
  options.connect_timeout = std::chrono::seconds(10);
  return options;
}

void wait_on_bell(Endpoint& endpoint, transport::Bell bell, const std::string& what,
                  const std::function<bool()>& condition, std::chrono::nanoseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  transport::Sleeper sleeper(endpoint.doorbell().bell(bell), std::chrono::microseconds(20));
  while (!condition()) {
    if (deadline.expired()) throw Error(ErrorKind::kTimeout, what);
    sleeper.wait_briefly(deadline.remaining(limit));
  }
}

void wait_until(const std::string& what, const std::function<bool()>& condition, std::chrono::nanoseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  while (!condition()) {
    if (deadline.expired()) throw Error(ErrorKind::kTimeout, what);
    std::this_thread::yield();
  }
}

void send(Peer& peer, transport::Channel& channel, const transport::FrameHeader& header,
          std::span<const std::byte> payload, transport::Bell bell) {
  wait_on_bell(peer.endpoint, bell, "send", [&] { return channel.try_send(header, payload); });
}

const transport::Frame& receive(Peer& peer, transport::Channel& channel, transport::Bell bell) {
  const transport::Frame* frame = nullptr;
  wait_on_bell(peer.endpoint, bell, "receive", [&] { return (frame = channel.front()) != nullptr; });
  return *frame;
}

}  // namespace atl::test
