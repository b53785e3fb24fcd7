// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/transport/address.h"

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

}  // namespace atl::transport
