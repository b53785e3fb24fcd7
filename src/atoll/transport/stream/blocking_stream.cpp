// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/blocking_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/stream/connect_tcp.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMaxPoll{60'000};
constexpr milliseconds kMaxConnect{24 * 3600'000};
constexpr milliseconds kBlockingAlertTime{200};  // for the alert that reports the error to the other end
constexpr std::size_t kInputBytes = std::size_t{16} << 10;

milliseconds left(Deadline deadline, milliseconds limit) {
  return std::chrono::ceil<milliseconds>(deadline.remaining(limit));
}

}  // namespace

BlockingStream::BlockingStream(const HostPort& place, std::shared_ptr<const Credentials> credentials, Deadline deadline)
    : name_(to_string(place)), fd_(connect_tcp(place.host, place.port, left(deadline, kMaxConnect))) {
  if (!credentials) return;
  tls_ = std::make_unique<TlsSession>(std::move(credentials), TlsRole::kClient, name_, place.host);
  shake_hands(deadline);
}

void BlockingStream::shake_hands(Deadline deadline) {
  for (bool done = false; !done;) {
    try {
      done = tls_->handshake();
    } catch (const Error&) {
      try {
        send_output(Deadline::after(kBlockingAlertTime));
      } catch (const Error&) {  // the first error is the one that counts
      }
      throw;
    }
    send_output(deadline);
    if (!done) take_input(deadline);
  }
}

void BlockingStream::send(std::span<const std::byte> bytes, Deadline deadline) {
  if (!tls_) return send_plain(bytes, deadline);
  while (!bytes.empty()) {
    const std::size_t taken = tls_->write(bytes);
    bytes = bytes.subspan(taken);
    send_output(deadline);
    if (taken == 0) take_input(deadline);
  }
}

std::size_t BlockingStream::receive(std::span<std::byte> into, Deadline deadline) {
  if (!tls_) return receive_plain(into, deadline);
  for (;;) {
    const std::size_t count = tls_->read(into);
    send_output(deadline);
    if (count != 0) return count;
    if (tls_->has_ended()) throw Error(ErrorKind::kPeerLost, name_ + " ended the connection");
    take_input(deadline);
  }
}

void BlockingStream::send_output(Deadline deadline) {
  auto& output = tls_->output();
  if (output.empty()) return;
  send_plain(output, deadline);
  output.clear();
}

void BlockingStream::take_input(Deadline deadline) {
  input_.resize(kInputBytes);
  const std::size_t count = receive_plain(input_, deadline);
  tls_->give(std::span(input_).first(count));
}

void BlockingStream::send_plain(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      wait_for(POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw Error(ErrorKind::kPeerLost, with_errno(name_ + " broke the connection", errno));
    }
  }
}

std::size_t BlockingStream::receive_plain(std::span<std::byte> into, Deadline deadline) {
  for (;;) {
    const auto got = ::recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) throw Error(ErrorKind::kPeerLost, name_ + " ended the connection");
    if (errno == EAGAIN) {
      wait_for(POLLIN, deadline);
    } else if (errno != EINTR) {
      throw Error(ErrorKind::kPeerLost, with_errno(name_ + " broke the connection", errno));
    }
  }
}

void BlockingStream::wait_for(short events, Deadline deadline) const {
  for (;;) {
    pollfd ready{fd_.get(), events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(left(deadline, kMaxPoll).count()));
    if (count > 0) return;
    if (count < 0 && errno != EINTR) throw Error(ErrorKind::kPeerLost, with_errno("waiting for " + name_, errno));
    if (deadline.expired()) throw Error(ErrorKind::kTimeout, name_ + " does not answer");
  }
}

}  // namespace atl::transport
