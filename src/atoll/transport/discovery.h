// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/endpoint.h"

namespace atl::transport {

/// Returns the identity of this host, within which processes share memory and abstract sockets: `label` if given, else
/// a name derived from the machine's boot id and the network namespace.
std::string host_identity(const std::string& label);

/// Returns this process's numeric addresses for peers, best first: options.advertised_address, else those of
/// options.interface, else the one that routes towards options.route_hint, else loopback. May query the name service.
/// Throws Error(kUnavailable) naming an interface or name that does not exist.
std::vector<std::string> advertised_hosts(const EndpointOptions& options);

/// Returns "10.0.0.1:4711", "[fe80::1%eth0]:4711".
std::string join_host_port(const std::string& host, std::uint16_t port);

/// Makes an Error(kUnavailable) with the system's reason and, when descriptors ran out, the remedy.
Error unavailable(const std::string& what, int error_number);

}  // namespace atl::transport
