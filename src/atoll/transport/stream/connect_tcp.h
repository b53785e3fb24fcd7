// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::transport {

/// Connects a non-blocking socket, with TCP_NODELAY, to the first address of the name that answers. Any thread but a
/// loop's; waits. Error(kUnavailable) for a name that is not known, kPeerLost where nobody listens or no way leads,
/// kTimeout. The name service has a time limit of its own.
Fd connect_tcp(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

}  // namespace atl::transport
