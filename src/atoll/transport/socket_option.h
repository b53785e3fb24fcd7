// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

namespace atl::transport {

/// Sets an option of a socket that is an int. A kernel that lacks the option keeps its own choice.
inline void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace atl::transport
