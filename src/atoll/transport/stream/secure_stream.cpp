// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/secure_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "atoll/transport/socket_option.h"
#include "atoll/transport/stream/secure_stream_impl.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMinBatch = std::size_t{16} << 10;
constexpr std::size_t kMaxBatch = std::size_t{64} << 10;
constexpr milliseconds kAlertTime{500};  // for the alert that reports the error to the other end

/// Limits the bytes that are not on the network yet: unlike a limit on the whole send buffer, this never holds back
/// what the network would take.
void tune(int fd, const SecureStream::Options& options) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.socket_send_bytes != 0) {
    const auto bytes = std::min(options.socket_send_bytes, std::size_t{1} << 30);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
  }
  if (options.silence.count() <= 0) return;
  const int seconds = static_cast<int>(std::clamp<std::int64_t>(options.silence.count() / 1000, 1, 3600));
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 4));
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

int socket_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace

SecureStream::Impl::Impl(Loop& its_loop, Owner& its_owner, SecureStream& its_stream, Fd socket, Role role,
                         std::shared_ptr<const Credentials> credentials, Options its_options)
    : loop(its_loop),
      owner(its_owner),
      stream(its_stream),
      options(std::move(its_options)),
      batch_limit(options.socket_send_bytes == 0 ? kMaxBatch
                                                 : std::clamp(options.socket_send_bytes, kMinBatch, kMaxBatch)),
      fd(std::move(socket)),
      tls(std::move(credentials), role, options.name, options.host) {
  tune(fd.get(), options);
}

void SecureStream::Impl::begin() {
  watched = EPOLLIN;
  loop.add_fd_on_loop(fd.get(), watched, [weak = weak_from_this()](std::uint32_t events) {
    if (const auto self = weak.lock()) self->on_event(events);
  });
  set_timer(options.handshake_timeout);
  has_waiting = true;  // a client sends first
  post(&Impl::receive);
}

void SecureStream::Impl::end() noexcept {
  if (std::exchange(state, State::kClosed) == State::kClosed) return;
  cancel_timer();
  loop.remove_fd_on_loop(fd.get());
  fd.reset();
}

void SecureStream::Impl::post(void (Impl::*action)()) {
  loop.post([weak = weak_from_this(), action] {
    const auto self = weak.lock();
    if (self && self->state != State::kClosed) ((*self).*action)();
  });
}

void SecureStream::Impl::on_event(std::uint32_t events) {
  if (state == State::kClosed) return;
  if (state == State::kOpen && paused) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      return finish(lost(send_error != 0 ? send_error : socket_error(fd.get())));
    }
  } else if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    return receive();
  }
  flush();
}

void SecureStream::Impl::watch() {
  if (state == State::kClosed) return;
  const bool wants_input = state != State::kOpen || !paused;
  const std::uint32_t events = (wants_input ? EPOLLIN : 0U) | (blocked ? EPOLLOUT : 0U);
  if (events == std::exchange(watched, events)) return;
  loop.modify_fd_on_loop(fd.get(), events);
}

void SecureStream::Impl::set_timer(milliseconds delay) {
  cancel_timer();
  timer = loop.add_timer_on_loop(std::max(delay, milliseconds(0)), false, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void SecureStream::Impl::cancel_timer() noexcept {
  if (const auto id = std::exchange(timer, std::nullopt)) loop.cancel_timer_on_loop(*id);
}

void SecureStream::Impl::on_timer() {
  timer.reset();
  if (closing && state == State::kOpen) flush();  // without time to linger, nothing was tried before
  if (state == State::kParting) return finish(result);
  if (!closing) {
    return finish(Error(ErrorKind::kTimeout, "the TLS handshake with " + options.name + " was not complete within " +
                                                 std::to_string(options.handshake_timeout.count()) + " ms"));
  }
  if (queue.empty()) return finish(std::nullopt);
  finish(Error(ErrorKind::kTimeout, "closing the connection with " + options.name + ": it did not take " +
                                        std::to_string(queued) + " bytes in time"));
}

/// An alert that waits in the output is sent first: closing at once would turn into a reset, which overtakes it.
void SecureStream::Impl::fail(const Error& error) {
  if (state == State::kClosed) return;
  if (send_error != 0 || tls.output().empty()) return finish(error);
  set_timer(kAlertTime);
  part(error);
}

void SecureStream::Impl::part(std::optional<Error> with) {
  state = State::kParting;
  result = std::move(with);
  paused = false;
  queue.clear();
  queued = batch;
  held.clear();
  watch();
  flush();
}

void SecureStream::Impl::finish(const std::optional<Error>& error) {
  if (state == State::kClosed) return;
  end();
  queue.clear();
  queued = batch = 0;
  owner.on_closed(stream, error);
}

Error SecureStream::Impl::lost(int error_number) const {
  const std::string who = "the other end at " + options.name;
  if (error_number == ETIMEDOUT) {
    return {ErrorKind::kPeerLost, with_errno(who + " no longer takes or acknowledges data", error_number)};
  }
  if (error_number != 0) return {ErrorKind::kPeerLost, with_errno(who + " broke the connection", error_number)};
  if (state == State::kHandshake) return {ErrorKind::kPeerLost, who + " ended the connection during the handshake"};
  return {ErrorKind::kPeerLost, who + " ended the connection without a goodbye: it died, or was stopped"};
}

void SecureStream::Impl::close(milliseconds linger) {
  if (closing || state == State::kParting || state == State::kClosed) return;
  closing = true;
  resume();
  if (state == State::kOpen) {
    set_timer(linger);
    post_flush();
  } else {
    set_timer(queue.empty() ? milliseconds(0) : std::min(linger, options.handshake_timeout));
  }
}

void SecureStream::Impl::pause() {
  if (closing) return;
  paused = true;
  watch();
}

void SecureStream::Impl::resume() {
  if (!std::exchange(paused, false)) return;
  watch();
  if (has_waiting) post(&Impl::receive);
}

SecureStream::SecureStream(Loop& loop, Owner& owner, Fd socket, Role role,
                           std::shared_ptr<const Credentials> credentials, Options options)
    : impl_(std::make_shared<Impl>(loop, owner, *this, std::move(socket), role, std::move(credentials),
                                   std::move(options))) {
  impl_->begin();
}

SecureStream::~SecureStream() { impl_->end(); }

void SecureStream::send_on_loop(Piece piece) { impl_->send(std::move(piece)); }

std::size_t SecureStream::queued_bytes() const noexcept { return impl_->queued; }

void SecureStream::close_on_loop(milliseconds linger) { impl_->close(linger); }

void SecureStream::pause_on_loop() { impl_->pause(); }

void SecureStream::resume_on_loop() { impl_->resume(); }

const std::string& SecureStream::name() const noexcept { return impl_->options.name; }

}  // namespace atl::transport
