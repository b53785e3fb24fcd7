// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/transport/address.h"

namespace atl::transport {

/// "host:port", "[::1]:4711" in parts; the host without brackets.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// The reverse: an IPv6 address gets its brackets.
std::string to_string(const HostPort& place);

/// Port 0 is accepted: a listener takes any. Error(kInvalidArgument) that says what is expected.
HostPort parse_host_port(const std::string& text);

/// The addresses of a name ("127.0.0.1", "::1" with or without brackets, "server.example"), in the system's order. May
/// ask the name service and wait for it. Error(kUnavailable) for a name that is not known.
std::vector<SocketAddress> resolve_host(const std::string& host, std::uint16_t port);

}  // namespace atl::transport
