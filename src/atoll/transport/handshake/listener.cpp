// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/socket.h"

namespace atl::transport {

namespace {

SocketAddress any_address(int family, std::uint16_t port) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);  // the address itself stays all zero: any
  return address;
}

bool no_such_family(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT; }

}  // namespace

UnixListener listen_unix() {
  PeerId name;
  fill_random(std::as_writable_bytes(std::span(name.bytes)));
  UnixListener listener;
  listener.name = "atoll-" + to_string(name);
  listener.fd = try_listen(abstract_unix_address(listener.name));
  if (!listener.fd) throw unavailable("cannot listen on a Unix socket", errno);
  return listener;
}

TcpListener listen_tcp(std::uint16_t first, std::uint16_t last) {
  if (last < first || (first == 0 && last != 0)) {
    throw Error(ErrorKind::kInvalidArgument, "port range " + std::to_string(first) + "-" + std::to_string(last) +
                                                 " (ATOLL_PORTS) must be FIRST-LAST with 1 <= FIRST <= LAST");
  }
  int error = 0;
  int family = AF_INET6;
  for (std::uint32_t port = first; port <= last; ++port) {
    TcpListener listener;
    listener.fd = try_listen(any_address(family, static_cast<std::uint16_t>(port)));
    if (!listener.fd && family == AF_INET6 && no_such_family(errno)) {
      family = AF_INET;  // a machine without IPv6
      listener.fd = try_listen(any_address(family, static_cast<std::uint16_t>(port)));
    }
    if (listener.fd) {
      listener.port = local_address(listener.fd.get()).port();
      return listener;
    }
    error = errno;
    if (error == EMFILE || error == ENFILE) throw unavailable("cannot open a TCP listener", error);
  }
  const std::string range = first == 0 ? "on any port"
                                       : "on a port of " + std::to_string(first) + "-" + std::to_string(last) +
                                             " (ATOLL_PORTS); widen the range or free a port";
  throw unavailable("cannot listen " + range, error);
}

}  // namespace atl::transport
