// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/worker/socket_sender.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <utility>

namespace atl::infer {

void SocketSender::send(const wire::Message& message) {
  const wire::FrameBytes frame = wire::make_frame(message);
  const std::lock_guard lock(mutex_);
  write(*frame, {});
}

void SocketSender::send(const wire::FrameHeader& header, HostBytes payload) {
  const std::lock_guard lock(mutex_);
  if (lent_ != nullptr && !is_gone_) {
    if (const auto lent = lent_->put(payload.bytes)) return write(*wire::make_frame(header, *lent), {});
  }
  write(wire::encode(header, payload.bytes), payload.bytes);
}

void SocketSender::write(std::span<const std::byte> head, std::span<const std::byte> payload) {
  // sendmsg does not change the bytes that the iovecs point to.
  std::array<iovec, 2> pieces{iovec{const_cast<std::byte*>(head.data()), head.size()},
                              iovec{const_cast<std::byte*>(payload.data()), payload.size()}};
  std::size_t first = 0;
  while (!is_gone_ && first < pieces.size()) {
    msghdr message{};
    message.msg_iov = &pieces.at(first);
    message.msg_iovlen = pieces.size() - first;
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) is_gone_ = true;
    std::size_t rest = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    while (first < pieces.size() && rest >= pieces.at(first).iov_len) rest -= pieces.at(first++).iov_len;
    if (first < pieces.size()) {
      iovec& piece = pieces.at(first);
      piece = {static_cast<std::byte*>(piece.iov_base) + rest, piece.iov_len - rest};
    }
  }
}

}  // namespace atl::infer
