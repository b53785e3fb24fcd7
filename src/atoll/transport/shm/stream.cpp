// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "atoll/core/error.h"

namespace atl::transport::shm {
namespace {

// One read returns the descriptors of at most one send, and a message carries one.
constexpr std::size_t kMaxMemoriesPerRead = 4;
constexpr std::size_t kMaxMemoriesWaiting = 64;

}  // namespace

void Stream::close() noexcept {
  socket_.reset();
  outbox_.clear();
  received_memory_.clear();
}

void Stream::queue(MessageType type, std::span<const std::byte> body, Fd memory) {
  outbox_.push_back({encode(type, body), std::move(memory), 0});
}

bool Stream::send_some(Outgoing& message) {
  iovec part{message.bytes.data() + message.sent, message.bytes.size() - message.sent};
  msghdr envelope{};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> ancillary{};
  if (message.memory) {
    envelope.msg_control = ancillary.data();
    envelope.msg_controllen = ancillary.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&envelope);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = message.memory.get();
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(descriptor));
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &envelope, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    const int error = errno;
    socket_is_full_ = error == EAGAIN;
    if (error == EINTR) return true;
    if (error == EAGAIN || error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM) return false;
    message.sent = message.bytes.size();
    return true;
  }
  message.memory.reset();
  message.sent += static_cast<std::size_t>(sent);
  return true;
}

void Stream::flush() {
  socket_is_full_ = false;
  while (!outbox_.empty()) {
    if (!send_some(outbox_.front())) return;
    if (outbox_.front().sent == outbox_.front().bytes.size()) outbox_.pop_front();
  }
}

Stream::Received Stream::receive() {
  const std::span<std::byte> space = parser_.space();
  iovec part{space.data(), space.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxMemoriesPerRead * sizeof(int))> ancillary{};
  msghdr envelope{};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  envelope.msg_control = ancillary.data();
  envelope.msg_controllen = ancillary.size();
  const ssize_t got = ::recvmsg(socket_.get(), &envelope, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
  for (cmsghdr* item = CMSG_FIRSTHDR(&envelope); item != nullptr; item = CMSG_NXTHDR(&envelope, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = CMSG_LEN(0); offset + sizeof(int) <= item->cmsg_len; offset += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(item) + offset, sizeof(descriptor));
      received_memory_.emplace_back(descriptor);
    }
  }
  if ((envelope.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(ErrorKind::kUnavailable, "cannot receive a peer's shared memory: out of descriptors (raise ulimit -n)");
  }
  if (received_memory_.size() > kMaxMemoriesWaiting) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: descriptors without messages");
  }
  if (got == 0) return Received::kEnd;
  parser_.add(static_cast<std::size_t>(got));
  return Received::kBytes;
}

Fd Stream::take_memory() {
  if (received_memory_.empty())
    throw Error(ErrorKind::kProtocol, "shared-memory link: a message came without its memory");
  Fd memory = std::move(received_memory_.front());
  received_memory_.pop_front();
  return memory;
}

}  // namespace atl::transport::shm
