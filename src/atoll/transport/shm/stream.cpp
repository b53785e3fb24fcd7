// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/descriptors.h"

namespace atl::transport::shm {
namespace {

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
  DescriptorSpace space;
  const int descriptor = message.memory.get();
  if (message.memory) space.put_into(envelope, {&descriptor, 1});
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
  msghdr envelope{};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  DescriptorSpace descriptors;  // one read returns those of at most one send, and a message carries one
  descriptors.offer_to(envelope);
  const ssize_t got = ::recvmsg(socket_.get(), &envelope, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
  DescriptorSpace::take_from(envelope, received_memory_);
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
  received_memory_.erase(received_memory_.begin());
  return memory;
}

}  // namespace atl::transport::shm
