// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace atl::transport {

HandshakeStream::HandshakeStream(Loop& loop, Owner& owner, Fd fd, std::string remote, LinkKind kind)
    : loop_(loop), owner_(owner), fd_(std::move(fd)), remote_(std::move(remote)), kind_(kind) {}

HandshakeStream::~HandshakeStream() {
  if (watched_) loop_.remove_fd_on_loop(fd_.get());
}

void HandshakeStream::begin(Handshake handshake, bool connecting) {
  handshake_.emplace(std::move(handshake));
  connecting_ = connecting;
  since_ = Clock::now();
  output_ = handshake_->take_output();
  watch(EPOLLIN | EPOLLRDHUP | (connecting_ || !output_.empty() ? EPOLLOUT : 0U));
}

void HandshakeStream::watch(std::uint32_t events) {
  if (!watched_) {
    loop_.add_fd_on_loop(fd_.get(), events, [this](std::uint32_t happened) { on_event(happened); });
    watched_ = true;
  } else if (events != events_) {
    loop_.modify_fd_on_loop(fd_.get(), events);
  }
  events_ = events;
}

Fd HandshakeStream::take_fd() {
  if (std::exchange(watched_, false)) loop_.remove_fd_on_loop(fd_.get());
  return std::move(fd_);
}

void HandshakeStream::end(const End& end) {
  if (std::exchange(watched_, false)) loop_.remove_fd_on_loop(fd_.get());
  owner_.on_ended(*this, end);
}

void HandshakeStream::on_event(std::uint32_t events) {
  if (connecting_ && !finish_connect()) return;
  if (!output_.empty() && !flush()) return;
  if (state() == Handshake::State::kDone) {  // a welcome that had to wait for room
    if (output_.empty()) owner_.on_done(*this);
    return;
  }
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_some();
}

bool HandshakeStream::finish_connect() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    end({Error(ErrorKind::kPeerLost, with_errno(remote_, error)), error});
    return false;
  }
  connecting_ = false;
  return true;
}

bool HandshakeStream::flush() {
  while (!output_.empty()) {
    const auto sent = ::send(fd_.get(), output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) {
      const int error = errno;
      end({Error(ErrorKind::kPeerLost, with_errno(remote_, error)), error});
      return false;
    }
    output_.erase(output_.begin(), output_.begin() + sent);
  }
  watch(EPOLLIN | EPOLLRDHUP | (output_.empty() ? 0U : EPOLLOUT));
  return true;
}

void HandshakeStream::read_some() {
  std::array<std::byte, kMaxHandshakeBytes> buffer;
  for (;;) {
    // While a proven peer waits for its answer it has nothing to say: any byte or end ends the connection.
    const bool silent = handshake_->wanted() == 0;
    const auto limit = silent ? 1 : std::min(buffer.size(), handshake_->wanted());
    const auto got = ::recv(fd_.get(), buffer.data(), limit, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      const std::string what = remote_ + " ended the connection during the handshake";
      return end({Error(ErrorKind::kPeerLost, error != 0 ? with_errno(what, error) : what), error, true});
    }
    heard_bytes_ += static_cast<std::uint64_t>(got);
    try {
      handshake_->receive(std::span(buffer).first(static_cast<std::size_t>(got)));
    } catch (const Error& error) {
      farewell();
      return end({Error(error.kind(), remote_ + ": " + error.what()), 0, false, handshake_->refusal()});
    }
    const auto answer = handshake_->take_output();
    output_.insert(output_.end(), answer.begin(), answer.end());
    if (!output_.empty() && !flush()) return;
    if (state() == Handshake::State::kProven) return owner_.on_proven(*this);
    if (state() == Handshake::State::kDone) return owner_.on_done(*this);
  }
}

void HandshakeStream::welcome() {
  handshake_->welcome();
  output_ = handshake_->take_output();
  if (flush() && output_.empty()) owner_.on_done(*this);
}

void HandshakeStream::refuse(Refusal refusal) {
  handshake_->refuse(refusal);
  farewell();
}

void HandshakeStream::farewell() noexcept {
  const auto answer = handshake_->take_output();
  if (!answer.empty()) {
    [[maybe_unused]] const auto sent = ::send(fd_.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // Unread bytes would turn the close into a reset, which can overtake the answer.
  std::array<std::byte, kMaxHandshakeBytes> rest;
  for (int i = 0; i < 4 && ::recv(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0; ++i) {
  }
  ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace atl::transport
