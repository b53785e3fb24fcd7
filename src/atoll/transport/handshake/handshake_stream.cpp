// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/handshake_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "atoll/transport/address.h"

namespace atl::transport {

HandshakeStream::HandshakeStream(Loop& loop, Owner& owner, Fd fd, std::string remote, LinkKind kind)
    : loop_(loop), owner_(owner), stream_(std::move(fd)), remote_(std::move(remote)), kind_(kind) {}

HandshakeStream::~HandshakeStream() {
  if (watched_) loop_.remove_fd_on_loop(stream_.fd());
}

void HandshakeStream::begin(Handshake handshake, bool connecting) {
  handshake_.emplace(std::move(handshake));
  connecting_ = connecting;
  since_ = Clock::now();
  const bool initiates = state() == Handshake::State::kAwaitChallenge;
  if (const auto& credentials = handshake_->credentials()) {
    stream_.secure(credentials, initiates ? TlsRole::kClient : TlsRole::kServer, remote_);
  } else {
    is_open_ = true;
  }
  output_ = handshake_->take_output();
  watch(connecting_ || !output_.empty());
}

void HandshakeStream::watch(bool for_room) {
  const std::uint32_t events = EPOLLIN | EPOLLRDHUP | (for_room ? EPOLLOUT : 0U);
  if (!watched_) {
    loop_.add_fd_on_loop(stream_.fd(), events, [this](std::uint32_t happened) { on_event(happened); });
    watched_ = true;
  } else if (events != events_) {
    loop_.modify_fd_on_loop(stream_.fd(), events);
  }
  events_ = events;
}

ByteStream HandshakeStream::take_stream() {
  if (std::exchange(watched_, false)) loop_.remove_fd_on_loop(stream_.fd());
  return std::move(stream_);
}

void HandshakeStream::end(const End& end) {
  if (std::exchange(watched_, false)) loop_.remove_fd_on_loop(stream_.fd());
  owner_.on_ended(*this, end);
}

void HandshakeStream::on_event(std::uint32_t events) {
  if (connecting_ && !finish_connect()) return;
  if (!is_open_ && !open_tls()) return;
  if ((!output_.empty() || stream_.holds_output()) && !flush()) return;
  if (state() == Handshake::State::kDone) {  // a welcome that had to wait for room
    if (output_.empty()) owner_.on_done(*this);
    return;
  }
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_some();
}

bool HandshakeStream::finish_connect() {
  if (const int error = take_error(stream_.fd()); error != 0) {
    end({Error(ErrorKind::kPeerLost, with_errno(remote_, error)), error});
    return false;
  }
  connecting_ = false;
  return true;
}

bool HandshakeStream::open_tls() {
  auto progress = ByteStream::Progress::kLost;
  try {
    progress = stream_.handshake();
  } catch (const Error& error) {
    farewell();
    end({Error(error.kind(),
               std::string(error.what()) + " (ATOLL_TLS and ATOLL_KEY_FILE must be equal on both sides)")});
    return false;
  }
  const int error = errno;
  heard_bytes_ = stream_.received_bytes();
  if (progress == ByteStream::Progress::kLost) {
    const std::string what = remote_ + " ended the connection during the TLS handshake (is ATOLL_TLS=1 set there?)";
    end({Error(ErrorKind::kPeerLost, error != 0 ? with_errno(what, error) : what), error, true});
    return false;
  }
  is_open_ = progress == ByteStream::Progress::kOpen;
  watch(stream_.holds_output());
  return is_open_;
}

bool HandshakeStream::flush() {
  if (!stream_.write_from(output_)) {
    const int error = errno;
    end({Error(ErrorKind::kPeerLost, with_errno(remote_, error)), error});
    return false;
  }
  stream_.flush();  // a broken connection shows when it is read
  watch(!output_.empty() || stream_.holds_output());
  return true;
}

void HandshakeStream::read_some() {
  std::array<std::byte, kMaxHandshakeBytes> buffer;
  for (;;) {
    // A proven peer sends nothing while it waits for the answer: any byte, or an end-of-file, ends the connection.
    const bool silent = handshake_->wanted() == 0;
    const auto limit = silent ? 1 : std::min(buffer.size(), handshake_->wanted());
    const iovec piece{buffer.data(), limit};
    bool drained = false;
    std::ptrdiff_t got = 0;
    try {
      got = stream_.read({&piece, 1}, &drained);
      if (got > 0) handshake_->receive(std::span(buffer).first(static_cast<std::size_t>(got)));
    } catch (const Error& error) {
      farewell();
      return end({Error(error.kind(), remote_ + ": " + error.what()), 0, false, handshake_->refusal()});
    }
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      const std::string what = remote_ + " ended the connection during the handshake";
      return end({Error(ErrorKind::kPeerLost, error != 0 ? with_errno(what, error) : what), error, true});
    }
    heard_bytes_ = stream_.received_bytes();
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
  auto answer = handshake_->take_output();
  stream_.write_from(answer);
  stream_.flush();
  for (int i = 0; i < 4 && stream_.drop_input() > 0; ++i) {
  }
  ::shutdown(stream_.fd(), SHUT_WR);
}

}  // namespace atl::transport
