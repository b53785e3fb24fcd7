// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>

#include "atoll/core/deadline.h"

namespace atl::transport {

/// Blocks until the socket is ready for one of `events`, which are poll's. Returns 0, ETIMEDOUT at the deadline, or the
/// number of poll's error.
inline int wait_ready(int fd, short events, Deadline deadline) {
  constexpr std::chrono::milliseconds kMaxPoll{60'000};
  for (;;) {
    pollfd ready{fd, events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(kMaxPoll));
    const int count = ::poll(&ready, 1, static_cast<int>(left.count()));
    if (count > 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
    if (deadline.expired()) return ETIMEDOUT;
  }
}

}  // namespace atl::transport
