// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/connect_tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/transport/discovery.h"
#include "atoll/transport/socket.h"
#include "atoll/transport/stream/wait_ready.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

/// A port without a listener may be chosen for this very socket, which then connects to itself.
bool is_own_echo(int fd) {
  const auto near = local_address(fd);
  const auto far = remote_address(fd);
  return near.length == far.length && std::memcmp(&near.storage, &far.storage, near.length) == 0;
}

/// Returns 0, or the error number.
int wait_connected(int fd, Deadline deadline) {
  if (const int error = wait_ready(fd, POLLOUT, deadline); error != 0) return error;
  const int error = take_error(fd);
  return error == 0 && is_own_echo(fd) ? ECONNREFUSED : error;
}

/// Returns 0, or the error number; throws errors that another address would not avoid.
int try_connect(const SocketAddress& address, Deadline deadline, Fd& out) {
  Fd fd = open_socket(address.family());
  if (!fd) {
    const int error = errno;
    if (error == EAFNOSUPPORT) return error;
    throw unavailable("no socket for a connection to " + to_string(address), error);
  }
  if (const int error = start_connecting(fd.get(), address); error != 0 && error != EINPROGRESS) return error;
  if (const int error = wait_connected(fd.get(), deadline); error != 0) return error;
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  out = std::move(fd);
  return 0;
}

}  // namespace

Fd connect_tcp(const std::string& host, std::uint16_t port, milliseconds timeout) {
  timeout = std::max(timeout, milliseconds(0));
  const Deadline deadline = Deadline::after(timeout);
  const auto addresses = resolve_host(host, port);
  std::string reasons;
  bool timed_out = false;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    // An address that does not answer must leave time for the others.
    const auto tries = static_cast<std::int64_t>(addresses.size() - i);
    Fd fd;
    const int error = try_connect(addresses[i], Deadline::after(deadline.remaining(timeout) / tries), fd);
    if (error == 0) return fd;
    timed_out = timed_out || error == ETIMEDOUT;
    reasons += (reasons.empty() ? "" : "; ") + with_errno(to_string(addresses[i]), error);
  }
  const std::string who = to_string(HostPort{host, port});
  if (timed_out) {
    throw Error(ErrorKind::kTimeout,
                "connecting to " + who + " within " + std::to_string(timeout.count()) + " ms: " + reasons);
  }
  throw Error(ErrorKind::kPeerLost, "cannot connect to " + who + ": " + reasons);
}

}  // namespace atl::transport
