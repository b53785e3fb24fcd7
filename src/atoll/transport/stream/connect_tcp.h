// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::transport {

/// Connects a non-blocking socket, with TCP_NODELAY, to the first address of the name that answers. Blocks, so it must
/// not be called on a loop. Throws Error(kUnavailable) for an unknown name, kPeerLost when there is no listener or no
/// route, kTimeout. The name service has a time limit of its own.
Fd connect_tcp(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

}  // namespace atl::transport
