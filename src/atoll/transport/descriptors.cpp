// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/descriptors.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "atoll/core/error.h"

namespace atl::transport {

void DescriptorSpace::put_into(msghdr& message, std::span<const int> descriptors) noexcept {
  if (descriptors.empty()) return;
  const std::size_t bytes = std::min(descriptors.size(), kMaxDescriptors) * sizeof(int);
  message.msg_control = space_.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
}

void DescriptorSpace::offer_to(msghdr& message) noexcept {
  message.msg_control = space_.data();
  message.msg_controllen = space_.size();
}

void DescriptorSpace::take_from(const msghdr& message, std::vector<Fd>& descriptors) {
  auto& received = const_cast<msghdr&>(message);  // CMSG_NXTHDR takes no const one
  for (cmsghdr* item = CMSG_FIRSTHDR(&received); item != nullptr; item = CMSG_NXTHDR(&received, item)) {
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
}

bool send_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not change it
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  DescriptorSpace space;
  space.put_into(message, descriptors);
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

std::optional<ReceivedDescriptors> receive_descriptors(int socket, std::size_t bytes) {
  ReceivedDescriptors received;
  received.bytes.resize(bytes);
  iovec part{received.bytes.data(), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  DescriptorSpace space;
  space.offer_to(message);
  const ssize_t count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (count <= 0) throw Error(ErrorKind::kPeerLost, "the other end of a Unix socket is closed");
  DescriptorSpace::take_from(message, received.descriptors);
  if (static_cast<std::size_t>(count) != bytes) {
    throw Error(ErrorKind::kProtocol,
                "a Unix socket brought " + std::to_string(count) + " bytes instead of " + std::to_string(bytes));
  }
  return received;
}

}  // namespace atl::transport
