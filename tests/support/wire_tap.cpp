// SPDX-License-Identifier: Apache-2.0
#include "tests/support/wire_tap.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>

#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

namespace atl::test {

namespace {

constexpr std::size_t kWays = 2;

Fd make_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

void disable_delay(const Fd& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void send_all(const Fd& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

}  // namespace

struct WireTap::State {
  /// By direction: the socket it reads from. It writes to the other one.
  struct Connection {
    std::array<Fd, kWays> ends;
    bool is_open = true;
  };

  Fd listener = make_socket();
  std::array<Fd, 2> stop_pipe;
  transport::SocketAddress target;
  std::list<Connection> connections;  // used by the thread only
  mutable std::mutex mutex;           // guards the members below
  std::array<std::vector<std::byte>, kWays> recorded;
  std::array<std::optional<std::uint64_t>, kWays> flip_at;
  std::thread thread;

  void accept_one() {
    Connection made;
    made.ends[0] = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    made.ends[1] = make_socket();
    if (!made.ends[0] || ::connect(made.ends[1].get(), target.get(), target.length) != 0) return;
    for (const Fd& end : made.ends) disable_delay(end);
    connections.push_back(std::move(made));
  }

  void pass_on(Connection& connection, std::size_t way) {
    std::array<std::byte, std::size_t{1} << 16> buffer;
    const auto got = ::recv(connection.ends[way].get(), buffer.data(), buffer.size(), 0);
    connection.is_open = connection.is_open && got > 0;
    if (got <= 0) return;
    const auto bytes = std::span(buffer).first(static_cast<std::size_t>(got));
    {
      const std::lock_guard lock(mutex);
      auto& before = recorded[way];
      auto& flip = flip_at[way];
      if (flip && *flip < before.size() + bytes.size()) {
        bytes[static_cast<std::size_t>(*flip - before.size())] ^= std::byte{1};
        flip.reset();
      }
      before.insert(before.end(), bytes.begin(), bytes.end());
    }
    send_all(connection.ends[1 - way], bytes);
  }

  void run() {
    for (;;) {
      std::vector<pollfd> ready{{stop_pipe[0].get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
      for (const auto& each : connections) {
        for (const Fd& end : each.ends) ready.push_back({end.get(), POLLIN, 0});
      }
      if (::poll(ready.data(), ready.size(), -1) < 0) continue;
      if (ready[0].revents != 0) return;
      std::size_t at = 2;
      for (auto& each : connections) {
        for (std::size_t way = 0; way < kWays; ++way, ++at) {
          if (ready[at].revents != 0 && each.is_open) pass_on(each, way);
        }
      }
      std::erase_if(connections, [](const Connection& each) { return !each.is_open; });
      if (ready[1].revents != 0) accept_one();
    }
  }
};

WireTap::WireTap(const std::string& target) : state_(std::make_unique<State>()) {
  const auto parsed = transport::parse_tcp_address(target);
  const auto any_port = transport::parse_ip("127.0.0.1", 0);
  std::array<int, 2> pipe{};
  if (!parsed || ::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("no tap for " + target);
  state_->stop_pipe = {Fd(pipe[0]), Fd(pipe[1])};
  state_->target = *parsed;
  if (::bind(state_->listener.get(), any_port->get(), any_port->length) != 0 ||
      ::listen(state_->listener.get(), 8) != 0) {
    throw std::runtime_error("no listener for a tap");
  }
  state_->thread = std::thread([this] { state_->run(); });
}

WireTap::~WireTap() {
  state_->stop_pipe[1].reset();
  state_->thread.join();
}

std::string WireTap::address() const { return to_string(transport::local_address(state_->listener.get())); }

std::vector<std::byte> WireTap::recorded(Way way) const {
  const std::lock_guard lock(state_->mutex);
  return state_->recorded[static_cast<std::size_t>(way)];
}

std::size_t WireTap::passed(Way way) const {
  const std::lock_guard lock(state_->mutex);
  return state_->recorded[static_cast<std::size_t>(way)].size();
}

void WireTap::flip(Way way, std::uint64_t after) {
  const std::lock_guard lock(state_->mutex);
  const auto index = static_cast<std::size_t>(way);
  state_->flip_at[index] = state_->recorded[index].size() + after;
}

}  // namespace atl::test
