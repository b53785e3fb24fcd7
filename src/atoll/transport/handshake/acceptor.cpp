// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/acceptor.h"

#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/log.h"
#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"

namespace atl::transport {

namespace {

constexpr std::size_t kMaxComplaints = 10;
constexpr int kAcceptsPerTurn = 64;
constexpr std::chrono::milliseconds kHandshakePatience{10'000};

/// Returns a name of the connection for messages.
std::string name_of(int fd, LinkKind kind) {
  if (kind == LinkKind::kTcp) return to_string(remote_address(fd));
  const pid_t process = peer_process(fd);
  return (process > 0 ? "process " + std::to_string(process) : "a process") + " of this host";
}

SocketAddress any_address(int family, std::uint16_t port) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);  // the address itself stays all zero: any
  return address;
}

bool no_such_family(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT; }

}  // namespace

UnixListener listen_unix() {
  std::array<std::byte, 16> name;
  fill_random(name);
  UnixListener listener{.fd = {}, .name = "atoll-" + hex(name)};
  listener.fd = try_listen(abstract_unix_address(listener.name));
  if (!listener.fd) throw unavailable("cannot listen on a Unix socket", errno);
  return listener;
}

TcpListener listen_tcp(std::uint16_t first, std::uint16_t last) {
  if (last < first || (first == 0 && last != 0)) {
    throw Error(ErrorKind::kInvalidArgument, "port range ", first, "-", last,
                " (ATOLL_PORTS) must be FIRST-LAST with 1 <= FIRST <= LAST");
  }
  int error = 0;
  int family = AF_INET6;
  for (std::uint32_t port = first; port <= last; ++port) {
    TcpListener listener;
    listener.fd = try_listen(any_address(family, static_cast<std::uint16_t>(port)));
    if (!listener.fd && family == AF_INET6 && no_such_family(errno)) {
      family = AF_INET;  // a machine without IPv6
      listener.fd = try_listen(any_address(family, static_cast<std::uint16_t>(port)));
    }
    if (listener.fd) {
      listener.port = local_address(listener.fd.get()).port();
      return listener;
    }
    error = errno;
    if (error == EMFILE || error == ENFILE) throw unavailable("cannot open a TCP listener", error);
  }
  if (first == 0) throw unavailable("cannot listen on any port", error);
  throw unavailable(
      joined("cannot listen on a port of ", first, "-", last, " (ATOLL_PORTS); widen the range or free a port"), error);
}

Acceptor::Acceptor(Loop& loop, Owner& owner, UnixListener unix_listener, TcpListener tcp_listener,
                   std::chrono::milliseconds patience, MakeHandshake make_handshake)
    : loop_(loop),
      owner_(owner),
      unix_(std::move(unix_listener)),
      tcp_(std::move(tcp_listener)),
      patience_(patience),
      make_handshake_(std::move(make_handshake)) {}

void Acceptor::begin() {
  listening_ = true;
  loop_.add_fd_on_loop(unix_.fd.get(), EPOLLIN, [this](std::uint32_t) { accept_some(LinkKind::kShm); });
  loop_.add_fd_on_loop(tcp_.fd.get(), EPOLLIN, [this](std::uint32_t) { accept_some(LinkKind::kTcp); });
}

void Acceptor::stop() {
  for (Fd* fd : {&unix_.fd, &tcp_.fd}) {
    if (!*fd) continue;
    loop_.remove_fd_on_loop(fd->get());
    fd->reset();
  }
  while (!streams_.empty()) drop(*streams_.front());
}

void Acceptor::listen(bool wanted) {
  if (wanted == listening_ || !unix_.fd) return;
  listening_ = wanted;
  for (const Fd* fd : {&unix_.fd, &tcp_.fd}) loop_.modify_fd_on_loop(fd->get(), wanted ? EPOLLIN : 0U);
}

void Acceptor::accept_some(LinkKind kind) {
  const int listener = kind == LinkKind::kShm ? unix_.fd.get() : tcp_.fd.get();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (streams_.size() >= kMaxIncoming) return listen(false);
    Fd fd = accept_from(listener);
    if (!fd) {
      const int error = errno;
      if (lacks_resources(error)) {
        listen(false);  // until the next tick
        if (!std::exchange(exhausted_, true)) {
          log(LogLevel::kError,
              with_errno("cannot accept a connection; raise the limit of open files (ulimit -n)", error));
        }
      }
      return;
    }
    exhausted_ = false;
    const std::string remote = name_of(fd.get(), kind);
    streams_.push_back(std::make_unique<HandshakeStream>(loop_, static_cast<HandshakeStream::Owner&>(*this),
                                                         std::move(fd), remote, kind));
    if (allowed_) start(*streams_.back());
  }
}

void Acceptor::start(HandshakeStream& stream) {
  try {
    stream.begin(make_handshake_(stream.kind()), false);
  } catch (const Error& error) {
    complain(stream.remote() + ": " + error.what());
    drop(stream);
  }
}

void Acceptor::allow_handshakes() {
  if (std::exchange(allowed_, true)) return;
  for (auto stream = streams_.begin(); stream != streams_.end();) start(**stream++);
}

void Acceptor::drop(HandshakeStream& stream) {
  owner_.on_incoming_gone(stream);
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [&](const auto& each) { return each.get() == &stream; });
  if (found == streams_.end()) return;
  const auto finished = std::move(*found);
  streams_.erase(found);
  if (streams_.size() < kMaxIncoming && !exhausted_) listen(true);
}

void Acceptor::refuse(HandshakeStream& stream, Refusal refusal) {
  stream.refuse(refusal);
  drop(stream);
}

void Acceptor::on_done(HandshakeStream& stream) {
  const PeerAddress authenticated = stream.peer();
  const std::uint8_t rail = stream.rail();
  ByteStream taken = stream.take_stream();
  drop(stream);
  owner_.on_incoming(rail, std::move(taken), authenticated);
}

void Acceptor::on_ended(HandshakeStream& stream, const HandshakeStream::End& end) {
  // A peer that gives up one of two connections, or that dies, is not a stranger.
  if (end.end_of_file || end.error_number != 0) {
    log(LogLevel::kDebug, end.error.what());
  } else {
    complain(std::string("refused a connection from ") + end.error.what());
  }
  drop(stream);
}

void Acceptor::complain(const std::string& message) {
  if (complaints_ >= kMaxComplaints) return;
  const bool last = ++complaints_ == kMaxComplaints;
  log(LogLevel::kWarning, message + (last ? " (further refused connections are not logged)" : ""));
}

void Acceptor::tick(Clock::time_point now) {
  for (auto each = streams_.begin(); each != streams_.end();) {
    HandshakeStream& stream = **each++;
    // A connection that waits for this side's key gets the full patience.
    const auto limit = stream.has_started() ? std::min(patience_, kHandshakePatience) : patience_;
    if (now - stream.since() < limit) continue;
    complain("refused a connection from " + stream.remote() + ": not authenticated within " +
             std::to_string(limit.count()) + " ms");
    drop(stream);
  }
  listen(streams_.size() < kMaxIncoming);
}

}  // namespace atl::transport
