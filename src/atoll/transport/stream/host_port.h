// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

// Places as users name them, and how a thread that may block connects to them.
namespace atl::transport {

/// The parts of "host:port" or "[::1]:4711"; the host without brackets.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// Returns "host:port", with brackets around an IPv6 address.
std::string to_string(const HostPort& place);

/// Parses "host:port". Port 0 is accepted: a listener then takes any. Throws Error(kInvalidArgument) that states what
/// is expected.
HostPort parse_host_port(const std::string& text);

/// Returns the addresses of a name ("127.0.0.1", "::1" with or without brackets, "server.example"), in the system's
/// order. May query the name service and wait for it. Throws Error(kUnavailable) for an unknown name.
std::vector<SocketAddress> resolve_host(const std::string& host, std::uint16_t port);

/// Blocks until the socket is ready for one of `events`, which are poll's. Returns 0, ETIMEDOUT at the deadline, or the
/// number of poll's error.
int wait_ready(int fd, short events, Deadline deadline);

/// Connects a non-blocking socket, with TCP_NODELAY, to the first address of the name that answers. Blocks, so it must
/// not be called on a loop. Throws Error(kUnavailable) for an unknown name, kPeerLost when there is no listener or no
/// route, kTimeout. The name service has a time limit of its own.
Fd connect_tcp(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

}  // namespace atl::transport
