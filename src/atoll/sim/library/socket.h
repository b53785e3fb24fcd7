// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "atoll/core/fd.h"

namespace atl::sim {

// Unix sockets between processes of one host. They keep messages apart (SOCK_SEQPACKET), carry a descriptor with each, and end
// when their process does. Names are abstract: nothing stays behind in the file system.

/// A socket that accepts connections under `name`. Throws Error(kUnavailable).
Fd listen_at(const std::string& name, int backlog);

/// A connection to `name`. Empty when nobody listens there; throws Error(kUnavailable).
Fd connect_to(const std::string& name);

/// The next connection by a process of the same user; others are turned away. Empty when there is none at present.
Fd accept_from(const Fd& listener);

/// One message, with a descriptor unless `memory` is negative. False when the other end is gone. Throws Error(kUnavailable) when
/// it is not read for too long.
bool send_message(const Fd& socket, std::span<const std::byte> message, int memory);

struct Received {
  enum class Kind { kNothing, kMessage, kEnd } kind = Kind::kNothing;
  std::size_t bytes = 0;
  Fd memory;
};

/// The next message, cut to `space`; does not block. Throws Error(kUnavailable) when its descriptor finds no place here.
Received receive_message(const Fd& socket, std::span<std::byte> space);

}  // namespace atl::sim
