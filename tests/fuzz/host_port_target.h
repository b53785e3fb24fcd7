// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/address.h"
#include "atoll/transport/stream/host_port.h"

namespace atl::fuzz {

/// "host:port" as users write it: it is rejected, or means the same after it is written again. Returns whether it was
/// read.
inline bool host_port(const std::string& text) {
  try {
    const transport::HostPort place = transport::parse_host_port(text);
    const transport::HostPort again = transport::parse_host_port(transport::to_string(place));
    if (place.host.empty() || again.host != place.host || again.port != place.port) std::abort();
    static_cast<void>(transport::parse_ip(place.host, place.port));
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) std::abort();
    return false;
  }
}

}  // namespace atl::fuzz
