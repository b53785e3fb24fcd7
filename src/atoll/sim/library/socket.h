// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "atoll/core/fd.h"

namespace atl::sim {

// Unix sockets between processes of one host. They preserve message boundaries (SOCK_SEQPACKET), carry a descriptor
// with each message, and end when their process does. Names are abstract: nothing is left in the file system.

/// Returns a socket that accepts connections under `name`. Throws Error(kUnavailable).
Fd listen_at(const std::string& name, int backlog);

/// Returns a connection to `name`, empty if no socket listens there. Throws Error(kUnavailable).
Fd connect_to(const std::string& name);

/// Returns the next connection by a process of the same user, refusing others; empty if there is none at present.
Fd accept_from(const Fd& listener);

/// Sends one message, with a descriptor unless `memory` is negative. Returns false if the other end is gone. Throws
/// Error(kUnavailable) if the other end does not read.
bool send_message(const Fd& socket, std::span<const std::byte> message, int memory);

struct Received {
  enum class Kind { kNothing, kMessage, kEnd } kind = Kind::kNothing;
  std::size_t bytes = 0;
  Fd memory;
};

/// Returns the next message, truncated to `space`; does not block. Throws Error(kUnavailable) if this process has no
/// free descriptor.
Received receive_message(const Fd& socket, std::span<std::byte> space);

}  // namespace atl::sim
