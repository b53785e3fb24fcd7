// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "atoll/core/error.h"

namespace atl::transport {

namespace {

constexpr std::size_t kSpace = CMSG_SPACE(kMaxDescriptors * sizeof(int));

msghdr message_of(iovec& part) noexcept {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

int take_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

pid_t peer_process(int fd) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 ? credentials.pid : 0;
}

Fd open_socket(int family) { return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

Fd try_listen(const SocketAddress& address) {
  Fd fd = open_socket(address.family());
  if (!fd) return fd;
  if (address.family() != AF_UNIX) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

Fd accept_from(int listener) { return Fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

bool lacks_resources(int error_number) noexcept {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS || error_number == ENOMEM;
}

int start_connecting(int fd, const SocketAddress& to) {
  int result = 0;
  do {
    result = ::connect(fd, to.get(), to.length);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EISCONN) return 0;
  return errno == EALREADY ? EINPROGRESS : errno;
}

ssize_t send_with(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not change it
  msghdr message = message_of(part);
  alignas(cmsghdr) std::array<char, kSpace> space{};
  if (!descriptors.empty()) {
    const std::size_t size = std::min(descriptors.size(), kMaxDescriptors) * sizeof(int);
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), size);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_with(int socket, std::span<std::byte> into, std::vector<Fd>& descriptors) {
  iovec part{into.data(), into.size()};
  msghdr message = message_of(part);
  alignas(cmsghdr) std::array<char, kSpace> space{};
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = CMSG_LEN(0); offset + sizeof(int) <= item->cmsg_len; offset += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(item) + offset, sizeof descriptor);
      descriptors.emplace_back(descriptor);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(ErrorKind::kUnavailable, "cannot receive a peer's shared memory: out of descriptors (raise ulimit -n)");
  }
  return got;
}

bool send_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  ssize_t sent = -1;
  do {
    sent = send_with(socket, bytes, descriptors);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

std::optional<ReceivedDescriptors> receive_descriptors(int socket, std::size_t bytes) {
  ReceivedDescriptors received;
  received.bytes.resize(bytes);
  const ssize_t count = receive_with(socket, received.bytes, received.descriptors);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (count <= 0) throw Error(ErrorKind::kPeerLost, "the other end of a Unix socket is closed");
  if (static_cast<std::size_t>(count) != bytes) {
    throw Error(ErrorKind::kProtocol, "a Unix socket brought ", count, " bytes instead of ", bytes);
  }
  return received;
}

}  // namespace atl::transport
