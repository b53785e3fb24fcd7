// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "atoll/transport/endpoint.h"

namespace atl::transport {

/// Returns the identity of this host, within which processes share memory and abstract sockets: `label` if given, else
/// a name derived from the machine's boot id and the network namespace.
std::string host_identity(const std::string& label);

/// Returns this process's numeric addresses for peers, best first: options.advertised_address, else those of
/// options.interface, else the one that routes towards options.route_hint, else loopback. May query the name service.
/// Throws Error(kUnavailable) naming an interface or name that does not exist.
std::vector<std::string> advertised_hosts(const EndpointOptions& options);

}  // namespace atl::transport
