// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "atoll/core/error.h"

namespace atl::sim {
namespace {

constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC;

std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    throw Error(ErrorKind::kInternal, "simccl: the socket name " + name + " is too long");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: abstract
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

Fd new_socket(int flags) {
  const int made = ::socket(AF_UNIX, kKind | flags, 0);
  if (made < 0) throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot make a Unix socket", errno));
  return Fd(made);
}

}  // namespace

Fd listen_at(const std::string& name, int backlog) {
  Fd socket = new_socket(SOCK_NONBLOCK);
  const auto [address, length] = address_of(name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), backlog) != 0) {
    throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot listen on the Unix socket " + name, errno));
  }
  return socket;
}

Fd connect_to(const std::string& name) {
  Fd socket = new_socket(0);
  const auto [address, length] = address_of(name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket;
  if (errno == ECONNREFUSED) return {};
  throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot connect to the Unix socket " + name, errno));
}

Fd accept_from(const Fd& listener) {
  const int accepted = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (accepted < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return {};
    throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot accept a connection", errno));
  }
  Fd socket(accepted);
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != ::geteuid()) return {};
  return socket;
}

bool send_message(const Fd& socket, std::span<const std::byte> message, int memory) {
  const std::span<const int> descriptors(&memory, memory >= 0 ? 1 : 0);
  if (retried([&] { return send_with(socket.get(), message, descriptors); }) >= 0) return true;
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return false;
  throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot send to another rank", errno));
}

Received receive_message(const Fd& socket, std::span<std::byte> space) {
  Received received;
  std::vector<Fd> memories;
  const ssize_t got = receive_with(socket.get(), space, memories);
  if (got < 0) {
    received.kind = errno == EAGAIN || errno == EINTR ? Received::Kind::kNothing : Received::Kind::kEnd;
    return received;
  }
  if (!memories.empty()) received.memory = std::move(memories.front());
  received.kind = got == 0 ? Received::Kind::kEnd : Received::Kind::kMessage;
  received.bytes = static_cast<std::size_t>(got);
  return received;
}

}  // namespace atl::sim
