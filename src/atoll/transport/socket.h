// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/transport/address.h"

// What every user of stream sockets does with the system.
namespace atl::transport {

/// Makes an Error(kUnavailable) with the system's reason and, when descriptors ran out, the remedy.
Error unavailable(const std::string& what, int error_number);

/// Sets an option of a socket that is an int. A kernel that lacks the option keeps its own choice.
void set_option(int fd, int level, int option, int value);

/// Returns the number of the error that broke the connection, or with which connect() failed, and clears it; 0: none.
int take_error(int fd);

/// Returns the process at the other end of a connected Unix socket; 0: not known.
pid_t peer_process(int fd) noexcept;

// These make non-blocking sockets, closed on exec. An empty Fd: errno says why.

Fd open_socket(int family);
Fd try_listen(const SocketAddress& address);
Fd accept_from(int listener);

/// Returns whether accept_from failed for lack of descriptors or memory: the waiting connection would wake the loop
/// forever, so stop listening for a moment.
bool lacks_resources(int error_number) noexcept;

/// Starts to connect. Returns 0 if the socket is connected, EINPROGRESS if that takes time, or the number of the error.
int start_connecting(int fd, const SocketAddress& to);

}  // namespace atl::transport
