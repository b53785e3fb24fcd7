// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/blocking_stream.h"

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMaxConnect{24 * 3600'000};

}  // namespace

BlockingStream::BlockingStream(const HostPort& place, std::shared_ptr<const Credentials> credentials, Deadline deadline)
    : name_(to_string(place)),
      stream_(connect_tcp(place.host, place.port, std::chrono::ceil<milliseconds>(deadline.remaining(kMaxConnect)))) {
  if (!credentials) return;
  stream_.secure(std::move(credentials), TlsRole::kClient, name_, place.host);
  try {
    shake_hands(deadline);
  } catch (const Error&) {
    stream_.close();  // sends the alert that tells the other end why
    throw;
  }
}

void BlockingStream::shake_hands(Deadline deadline) {
  for (;;) {
    const auto progress = stream_.handshake();
    if (progress == ByteStream::Progress::kLost) throw lost(errno);
    if (progress == ByteStream::Progress::kOpen) return;
    wait_for(static_cast<short>(POLLIN | (stream_.holds_output() ? POLLOUT : 0)), deadline);
  }
}

void BlockingStream::send(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty() || stream_.holds_output()) {
    const iovec piece = piece_of(bytes);
    const auto sent = stream_.write({&piece, 1});
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN) {
      throw lost(errno);
    } else if (stream_.is_secure() && !stream_.holds_output()) {
      shake_hands(deadline);  // takes the rest of a message that TLS must read first
    } else {
      wait_for(POLLOUT, deadline);
    }
  }
}

std::size_t BlockingStream::receive(std::span<std::byte> into, Deadline deadline) {
  for (;;) {
    const iovec piece{into.data(), into.size()};
    bool drained = false;
    const auto got = stream_.read({&piece, 1}, &drained);
    if (got == 0) throw lost(0);
    if (got < 0 && errno != EAGAIN) throw lost(errno);
    if (stream_.wants_write()) stream_.flush();  // a broken connection shows when it is read
    if (got > 0) return static_cast<std::size_t>(got);
    wait_for(POLLIN, deadline);
  }
}

void BlockingStream::wait_for(short events, Deadline deadline) const {
  const int error = wait_ready(stream_.fd(), events, deadline);
  if (error == ETIMEDOUT) throw Error(ErrorKind::kTimeout, name_ + " does not answer");
  if (error != 0) throw Error(ErrorKind::kPeerLost, with_errno("waiting for " + name_, error));
}

/// 0: the end of the stream.
Error BlockingStream::lost(int error_number) const {
  if (error_number == 0) return {ErrorKind::kPeerLost, name_ + " ended the connection"};
  return {ErrorKind::kPeerLost, with_errno(name_ + " broke the connection", error_number)};
}

}  // namespace atl::transport
