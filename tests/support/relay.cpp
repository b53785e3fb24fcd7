// SPDX-License-Identifier: Apache-2.0
#include "tests/support/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <deque>
#include <list>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

namespace atl::test {

namespace {

using namespace std::chrono_literals;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kPieceBytes = std::size_t{16} << 10;  // of an unlimited path
constexpr double kPieceSeconds = 0.001;                     // of a limited one; pieces are passed on whole
constexpr std::size_t kMinPieceBytes = 1448;
constexpr std::size_t kMaxPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kUnlimitedBufferBytes = std::size_t{1} << 20;
constexpr auto kBacklog = 4ms;         // of a limited path, before its sender has to wait
constexpr auto kCatchUp = 100ms;       // how much of its sender's waiting a late relay may make up for
constexpr int kSocketBytes = 1 << 17;  // of the system's queues, where the path is limited
constexpr double kMaxSeconds = 1e6;    // of a wait

}  // namespace

namespace relay {

/// Tracks when the path is free for the next byte.
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
  plan::Lane way;
  Wire own{};
  std::deque<Piece> pieces{};
  std::size_t buffered = 0;
  bool has_more = false;  // the source had more after the last read
  bool ended = false;     // the source has ended
  bool finished = false;  // and its end was forwarded
};

struct Connection {
  Fd client;
  Fd server;
  std::array<Pipe, 2> pipes;
  bool broken = false;
};

struct Record {
  plan::Trace trace;
  Time begin;
};

}  // namespace relay

namespace {

using namespace relay;

Time later(Time time, double seconds) {
  return time + std::chrono::ceil<Clock::duration>(Seconds(std::min(seconds, kMaxSeconds)));
}

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
  std::shared_ptr<const Record> record;
  bool stalled = false;
  bool stopping = false;
  int cuts = 0;
  Cut cut = Cut::kEnd;
  std::uint64_t cut_bytes = 0;
  int cuts_to_come = 0;
  Cut cut_then = Cut::kEnd;

  // Used by the relay's thread only.
  int cuts_done = 0;
  int cuts_seen = 0;
  std::uint64_t left_until_cut = 0;  // 0: none comes
  bool is_cut = false;
  Cut how_then = Cut::kEnd;
  bool is_stalled = false;
  Path current;
  std::shared_ptr<const Record> current_record;
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
    current_record = record;
    if (cuts_seen != cuts_to_come) {
      cuts_seen = cuts_to_come;
      left_until_cut = cut_bytes;
      how_then = cut_then;
    }
    if (cuts_done != cuts) {
      cuts_done = cuts;
      end_all(cut);
    }
    return !stopping;
  }

  void end_all(Cut how) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    for (const Connection& connection : connections) {
      for (const Fd* fd : {&connection.client, &connection.server}) {
        if (how == Cut::kReset) ::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      }
    }
    connections.clear();
  }

  void accept_one() {
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) return;
    Fd server(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (is_limited(Clock::now())) {
      // Small socket buffers, so that senders feel the rate.
      for (const Fd* fd : {&client, &server}) {
        ::setsockopt(fd->get(), SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof kSocketBytes);
      }
    }
    // Over loopback a connection succeeds or fails at once; on failure the client sees an end.
    if (!server || ::connect(server.get(), target.get(), target.length) != 0) return;
    const int on = 1;
    for (const Fd* fd : {&client, &server}) ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection connection;
    connection.pipes[0] = {client.get(), server.get(), plan::Lane::kUp};
    connection.pipes[1] = {server.get(), client.get(), plan::Lane::kDown};
    connection.client = std::move(client);
    connection.server = std::move(server);
    connections.push_back(std::move(connection));
  }

  Wire& wire_of(Pipe& pipe) { return current.half_duplex ? shared : pipe.own; }

  bool replays(Time now) const { return current_record && now >= current_record->begin; }
  bool is_limited(Time now) const { return current.bytes_per_second > 0 || replays(now); }

  /// Returns when `pipe` may take more from its source; Time::max() while its buffer is full.
  Time ready_to_read(Pipe& pipe, Time now) {
    if (pipe.ended || is_stalled) return Time::max();
    if (is_limited(now)) return wire_of(pipe).free_at - kBacklog;
    return pipe.buffered < kUnlimitedBufferBytes ? Time::min() : Time::max();
  }

  std::size_t piece_bytes(const Pipe& pipe, Time now) const {
    if (!is_limited(now)) return kPieceBytes;
    double rate = current.bytes_per_second;
    if (replays(now)) {
      const std::vector<double>& rates = current_record->trace.rates(pipe.way);
      const double bins = Seconds(now - current_record->begin).count() / current_record->trace.bin_seconds();
      rate = rates[static_cast<std::size_t>(std::fmod(bins, static_cast<double>(rates.size())))];
    }
    const double bytes = std::min(rate * kPieceSeconds, static_cast<double>(kMaxPieceBytes));
    return std::max(static_cast<std::size_t>(bytes), kMinPieceBytes);
  }

  /// Returns when the last of `bytes` bytes is through that enter the path at `start`.
  Time end_of(plan::Lane way, Time start, std::size_t bytes) const {
    const auto count = static_cast<double>(bytes);
    if (replays(start)) {
      const double begin = Seconds(start - current_record->begin).count();
      return later(start, current_record->trace.end(way, begin, count) - begin);
    }
    return current.bytes_per_second > 0 ? later(start, count / current.bytes_per_second) : start;
  }

  bool read_piece(Pipe& pipe, Time now) {
    std::vector<std::byte> bytes(piece_bytes(pipe, now));
    const std::size_t most = bytes.size();
    const auto got = ::recv(pipe.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    pipe.ended = got == 0;
    if (pipe.ended) return true;
    bytes.resize(static_cast<std::size_t>(got));
    Wire& wire = wire_of(pipe);
    // Queued bytes have waited since the path was free; bytes that arrive now cannot have left earlier.
    const Time earliest = pipe.has_more ? now - kCatchUp : now;
    wire.free_at = end_of(pipe.way, std::max(wire.free_at, earliest), bytes.size());
    int waiting = 0;
    pipe.has_more = bytes.size() == most && ::ioctl(pipe.from, FIONREAD, &waiting) == 0 && waiting > 0;
    pipe.buffered += bytes.size();
    const auto delay = current.delay + (pipe.way == plan::Lane::kDown ? current.more_delay_back : 0us);
    pipe.pieces.push_back({std::max(wire.free_at, now) + delay, std::move(bytes), 0});
    return true;
  }

  bool write_pieces(Pipe& pipe, Time now) {
    while (!is_cut && !pipe.pieces.empty() && pipe.pieces.front().due <= now) {
      Piece& piece = pipe.pieces.front();
      std::size_t size = piece.bytes.size() - piece.sent;
      const bool is_counted = left_until_cut > 0 && pipe.way == plan::Lane::kUp;
      if (is_counted) size = std::min<std::size_t>(size, left_until_cut);
      const auto sent = ::send(pipe.to, piece.bytes.data() + piece.sent, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      const auto count = static_cast<std::size_t>(sent);
      if (is_counted) {
        left_until_cut -= count;
        is_cut = left_until_cut == 0;
      }
      piece.sent += count;
      pipe.buffered -= count;
      forwarded += count;
      if (piece.sent < piece.bytes.size()) return true;
      pipe.pieces.pop_front();
    }
    if (pipe.ended && pipe.pieces.empty() && !pipe.finished) {
      pipe.finished = true;
      ::shutdown(pipe.to, SHUT_WR);
    }
    return true;
  }

  /// Fills `polled` with the events to wait for, and returns until when to wait.
  Time look_around(std::vector<pollfd>& polled, Time now) {
    polled.clear();
    polled.push_back({wake.get(), POLLIN, 0});
    polled.push_back({listener.get(), POLLIN, 0});
    Time next = current_record && now < current_record->begin ? current_record->begin : Time::max();
    for (auto& connection : connections) {
      for (auto& pipe : connection.pipes) {
        const Time ready = ready_to_read(pipe, now);
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
        const bool was_looked_at = polled[index].fd >= 0;
        if (polled[index].revents != 0 && !is_stalled) {
          connection.broken |= !read_piece(pipe, now);
        } else if (was_looked_at) {
          pipe.has_more = false;
        }
        if (!is_stalled) connection.broken |= !write_pieces(pipe, now);
        index += 2;
      }
      connection.broken |= connection.pipes[0].finished && connection.pipes[1].finished;
    }
    connections.remove_if([](const Connection& each) { return each.broken; });
    if (is_cut) end_all(how_then);
    is_cut = false;
  }

  void run() {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // nanosecond: a late relay would look like a slow program
    std::vector<pollfd> polled;
    while (read_settings()) {
      const Time now = Clock::now();
      const Time next = look_around(polled, now);
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
        continue;  // settings made before bytes were sent apply to them
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
void Relay::replay(const plan::Trace& record, Clock::time_point begin) {
  for (const plan::Lane way : {plan::Lane::kUp, plan::Lane::kDown}) {
    const std::vector<double>& rates = record.rates(way);
    if (std::none_of(rates.begin(), rates.end(), [](double rate) { return rate > 0; })) {
      throw std::runtime_error("relay: a record in which nothing passes");
    }
  }
  const auto made = std::make_shared<const Record>(Record{record, begin});
  state_->change([&] { state_->record = made; });
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
void Relay::cut_after(std::uint64_t bytes, Cut how) {
  state_->change([&] {
    state_->cut_bytes = bytes;
    state_->cut_then = how;
    ++state_->cuts_to_come;
  });
}

std::uint64_t Relay::forwarded_bytes() const { return state_->forwarded; }

}  // namespace atl::test
