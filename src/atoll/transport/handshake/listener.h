// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/core/fd.h"

namespace atl::transport {

struct UnixListener {
  Fd fd;
  std::string name;
};
struct TcpListener {
  Fd fd;
  std::uint16_t port = 0;
};

/// Opens a non-blocking listener on a random abstract name. Throws Error(kUnavailable).
UnixListener listen_unix();

/// Opens a non-blocking listener on every address of this machine, IPv6 and IPv4, on the first free port of the range
/// (0, 0: any). Throws Error(kUnavailable) naming the range, Error(kInvalidArgument) when its ends are reversed.
TcpListener listen_tcp(std::uint16_t first, std::uint16_t last);

}  // namespace atl::transport
