// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/address.h"
#include "atoll/transport/socket.h"

namespace atl::transport {

namespace {

constexpr std::size_t kMaxComplaints = 10;
constexpr int kAcceptsPerTurn = 64;
constexpr std::chrono::milliseconds kHandshakePatience{10'000};

/// Returns a name of the connection for messages.
std::string name_of(int fd, LinkKind kind) {
  if (kind == LinkKind::kTcp) return to_string(remote_address(fd));
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return "a process of this host";
  return "process " + std::to_string(credentials.pid) + " of this host";
}

}  // namespace

Acceptor::Acceptor(Loop& loop, Owner& owner, UnixListener unix_listener, TcpListener tcp_listener,
                   std::chrono::milliseconds patience, MakeHandshake make_handshake)
    : loop_(loop),
      owner_(owner),
      unix_(std::move(unix_listener)),
      tcp_(std::move(tcp_listener)),
      patience_(patience),
      make_handshake_(std::move(make_handshake)) {}

Acceptor::~Acceptor() = default;

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
  const LinkKind kind = stream.kind();
  const std::uint8_t rail = stream.rail();
  ByteStream taken = stream.take_stream();
  drop(stream);
  owner_.on_incoming(kind, rail, std::move(taken), authenticated);
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
