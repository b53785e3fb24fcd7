// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cerrno>

namespace atl::transport {

/// Sets an option of a socket that is an int. A kernel that lacks the option keeps its own choice.
inline void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

/// Returns the number of the error that broke the connection, or with which connect() failed, and clears it; 0: none.
inline int take_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace atl::transport
