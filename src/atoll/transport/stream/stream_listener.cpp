// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/stream_listener.h"

#include <sys/epoll.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/core/log.h"
#include "atoll/transport/address.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::transport {

namespace {

constexpr int kStreamsPerTurn = 64;
constexpr std::chrono::milliseconds kExhaustedPause{100};

Fd listen_on(const std::string& host, std::uint16_t port) {
  int error = 0;
  for (const auto& address : resolve_host(host, port)) {
    if (Fd fd = try_listen(address)) return fd;
    error = errno;
  }
  const char* const way_out = error == EADDRINUSE      ? " (another program listens there; port 0 picks a free one)"
                              : error == EADDRNOTAVAIL ? " (this machine has no such address)"
                                                       : "";
  throw unavailable("cannot listen on " + to_string(HostPort{host, port}) + way_out, error);
}

}  // namespace

struct StreamListener::Impl : std::enable_shared_from_this<StreamListener::Impl> {
  Impl(Loop& its_loop, Owner& its_owner, const std::string& host, std::uint16_t port)
      : loop(its_loop), owner(its_owner), fd(listen_on(host, port)), address(local_address(fd.get())) {}

  void begin() {
    loop.add_fd_on_loop(fd.get(), EPOLLIN, [weak = weak_from_this()](std::uint32_t) {
      if (const auto self = weak.lock()) self->accept_some();
    });
  }

  void end() noexcept {
    if (timer) loop.cancel_timer_on_loop(*timer);
    loop.remove_fd_on_loop(fd.get());
    fd.reset();
  }

  void accept_some() {
    for (int i = 0; i < kStreamsPerTurn && fd; ++i) {
      Fd socket = accept_from(fd.get());
      if (!socket) {
        const int error = errno;
        if (lacks_resources(error)) pause(error);
        if (error == EINTR || error == ECONNABORTED) continue;
        return;
      }
      exhausted = false;
      const std::string peer = to_string(remote_address(socket.get()));
      owner.on_connection(std::move(socket), peer);
    }
  }

  /// Stops listening for a moment.
  void pause(int error) {
    if (!std::exchange(exhausted, true)) {
      log(LogLevel::kError, with_errno("cannot accept a connection on " + to_string(address) +
                                           "; raise the limit of open files (ulimit -n)",
                                       error));
    }
    loop.modify_fd_on_loop(fd.get(), 0);
    timer = loop.add_timer_on_loop(kExhaustedPause, false, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      self->timer.reset();
      self->loop.modify_fd_on_loop(self->fd.get(), EPOLLIN);
    });
  }

  Loop& loop;
  Owner& owner;
  Fd fd;
  const SocketAddress address;
  std::optional<Loop::TimerId> timer;
  bool exhausted = false;
};

StreamListener::StreamListener(Loop& loop, Owner& owner, const std::string& host, std::uint16_t port)
    : impl_(std::make_shared<Impl>(loop, owner, host, port)) {
  impl_->begin();
}

StreamListener::~StreamListener() { impl_->end(); }

std::uint16_t StreamListener::port() const noexcept { return impl_->address.port(); }

std::string StreamListener::address() const { return to_string(impl_->address); }

}  // namespace atl::transport
