// SPDX-License-Identifier: Apache-2.0
#include "tests/support/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <list>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

namespace atl::test {

namespace {

using namespace std::chrono_literals;
using Time = Clock::time_point;

constexpr std::size_t kPieceBytes = std::size_t{16} << 10;
constexpr std::size_t kUnlimitedBufferBytes = std::size_t{1} << 20;
constexpr auto kBacklog = 4ms;  // of a limited path, before its sender has to wait
constexpr auto kCatchUp = 2ms;  // a late relay may make up for so much

/// When the path is free for the next byte.
struct Wire {
  Time free_at{};
};

struct Piece {
  Time due;
  std::vector<std::byte> bytes;
  std::size_t sent = 0;
};

/// One direction of one connection.
struct Pipe {
  int from;
  int to;
  Wire own;
  std::deque<Piece> pieces;
  std::size_t buffered = 0;
  bool ended = false;     // the source has
  bool finished = false;  // and its end was passed on
};

struct Connection {
  Fd client;
  Fd server;
  std::array<Pipe, 2> pipes;
  bool broken = false;
};

Fd make_socket(int family) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw std::runtime_error("relay: no socket");
  return fd;
}

}  // namespace

struct Relay::State {
  transport::SocketAddress target;
  Fd listener;
  Fd wake;
  std::atomic<std::uint64_t> forwarded{0};

  std::mutex mutex;  // guards the settings
  Path path;
  bool stalled = false;
  bool stopping = false;
  int cuts = 0;
  Cut cut = Cut::kEnd;

  // The thread's own.
  int cuts_done = 0;
  bool is_stalled = false;
  Path current;
  Wire shared;
  std::list<Connection> connections;
  std::thread thread;

  void signal() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
  }

  template <class Change>
  void change(const Change& what) {
    {
      const std::lock_guard lock(mutex);
      what();
    }
    signal();
  }

  bool read_settings() {
    const std::lock_guard lock(mutex);
    is_stalled = stalled;
    current = path;
    if (cuts_done != cuts) {
      cuts_done = cuts;
      for (auto& connection : connections) end(connection, cut);
      connections.clear();
    }
    return !stopping;
  }

  static void end(Connection& connection, Cut how) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    for (const Fd* fd : {&connection.client, &connection.server}) {
      if (how == Cut::kReset) ::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
  }

  void accept_one() {
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) return;
    Fd server(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    // Over loopback a connection succeeds or fails at once; on failure the client sees an end.
    if (!server || ::connect(server.get(), target.get(), target.length) != 0) return;
    const int on = 1;
    for (const Fd* fd : {&client, &server}) ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection connection;
    connection.pipes[0] = {client.get(), server.get(), {}, {}, 0, false, false};
    connection.pipes[1] = {server.get(), client.get(), {}, {}, 0, false, false};
    connection.client = std::move(client);
    connection.server = std::move(server);
    connections.push_back(std::move(connection));
  }

  Wire& wire_of(Pipe& pipe) { return current.half_duplex ? shared : pipe.own; }

  /// When `pipe` may take more from its source; Time::max() while its buffer is full.
  Time ready_to_read(Pipe& pipe) {
    if (pipe.ended || is_stalled) return Time::max();
    if (current.bytes_per_second > 0) return wire_of(pipe).free_at - kBacklog;
    return pipe.buffered < kUnlimitedBufferBytes ? Time::min() : Time::max();
  }

  bool read_piece(Pipe& pipe, Time now) {
    std::vector<std::byte> bytes(kPieceBytes);
    const auto got = ::recv(pipe.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    pipe.ended = got == 0;
    if (pipe.ended) return true;
    bytes.resize(static_cast<std::size_t>(got));
    Wire& wire = wire_of(pipe);
    wire.free_at = std::max(wire.free_at, now - kCatchUp);
    if (current.bytes_per_second > 0) {
      wire.free_at += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(got) / current.bytes_per_second));
    }
    pipe.buffered += bytes.size();
    pipe.pieces.push_back({std::max(wire.free_at, now) + current.delay, std::move(bytes), 0});
    return true;
  }

  bool write_pieces(Pipe& pipe, Time now) {
    while (!pipe.pieces.empty() && pipe.pieces.front().due <= now) {
      Piece& piece = pipe.pieces.front();
      const auto sent = ::send(pipe.to, piece.bytes.data() + piece.sent, piece.bytes.size() - piece.sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      piece.sent += static_cast<std::size_t>(sent);
      pipe.buffered -= static_cast<std::size_t>(sent);
      forwarded += static_cast<std::uint64_t>(sent);
      if (piece.sent < piece.bytes.size()) return true;
      pipe.pieces.pop_front();
    }
    if (pipe.ended && pipe.pieces.empty() && !pipe.finished) {
      pipe.finished = true;
      ::shutdown(pipe.to, SHUT_WR);
    }
    return true;
  }

  /// Fills `polled` with what to wait for and returns until when.
  Time plan(std::vector<pollfd>& polled, Time now) {
    polled.clear();
    polled.push_back({wake.get(), POLLIN, 0});
    polled.push_back({listener.get(), POLLIN, 0});
    Time next = Time::max();
    for (auto& connection : connections) {
      for (auto& pipe : connection.pipes) {
        const Time ready = ready_to_read(pipe);
        polled.push_back({ready <= now ? pipe.from : -1, POLLIN, 0});
        if (ready > now) next = std::min(next, ready);
        const bool waits = !is_stalled && !pipe.pieces.empty();
        polled.push_back({waits && pipe.pieces.front().due <= now ? pipe.to : -1, POLLOUT, 0});
        if (waits && pipe.pieces.front().due > now) next = std::min(next, pipe.pieces.front().due);
      }
    }
    return next;
  }

  void move_bytes(const std::vector<pollfd>& polled) {
    const Time now = Clock::now();
    std::size_t index = 2;
    for (auto& connection : connections) {
      for (auto& pipe : connection.pipes) {
        if (polled[index].revents != 0 && !is_stalled) connection.broken |= !read_piece(pipe, now);
        if (!is_stalled) connection.broken |= !write_pieces(pipe, now);
        index += 2;
      }
      connection.broken |= connection.pipes[0].finished && connection.pipes[1].finished;
    }
    connections.remove_if([](const Connection& each) { return each.broken; });
  }

  void run() {
    std::vector<pollfd> polled;
    while (read_settings()) {
      const Time now = Clock::now();
      const Time next = plan(polled, now);
      timespec limit{};
      if (next != Time::max()) {
        const auto left =
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::max(next - now, Clock::duration(0)));
        limit = {static_cast<time_t>(left.count() / 1'000'000'000), static_cast<long>(left.count() % 1'000'000'000)};
      }
      ::ppoll(polled.data(), polled.size(), next == Time::max() ? nullptr : &limit, nullptr);
      if (polled[0].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(wake.get(), &count, sizeof count);
      }
      move_bytes(polled);
      if (polled[1].revents != 0) accept_one();
    }
    connections.clear();
  }
};

Relay::Relay(const std::string& target, Path path) : state_(std::make_unique<State>()) {
  State& state = *state_;
  const auto parsed = transport::parse_tcp_address(target);
  if (!parsed) throw std::runtime_error("relay: bad target " + target);
  state.target = *parsed;
  state.path = path;
  state.listener = make_socket(AF_INET);
  const auto any = *transport::parse_ip("127.0.0.1", 0);
  if (::bind(state.listener.get(), any.get(), any.length) != 0 || ::listen(state.listener.get(), 64) != 0) {
    throw std::runtime_error("relay: cannot listen");
  }
  state.wake = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  state.thread = std::thread([&state] { state.run(); });
}

Relay::~Relay() {
  state_->change([this] { state_->stopping = true; });
  state_->thread.join();
}

std::string Relay::address() const { return to_string(transport::local_address(state_->listener.get())); }

void Relay::set_path(Path path) {
  state_->change([&] { state_->path = path; });
}
void Relay::stall() {
  state_->change([this] { state_->stalled = true; });
}
void Relay::resume() {
  state_->change([this] { state_->stalled = false; });
}
void Relay::cut(Cut how) {
  state_->change([&] {
    state_->cut = how;
    ++state_->cuts;
  });
}

std::uint64_t Relay::forwarded_bytes() const { return state_->forwarded; }

}  // namespace atl::test
