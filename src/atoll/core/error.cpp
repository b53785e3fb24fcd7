// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/error.h"

#include <system_error>

namespace atl {

const char* to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid_argument";
    case ErrorKind::kMismatch: return "mismatch";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kPeerLost: return "peer_lost";
    case ErrorKind::kAborted: return "aborted";
    case ErrorKind::kUnavailable: return "unavailable";
    case ErrorKind::kRefused: return "refused";
    case ErrorKind::kProtocol: return "protocol";
    case ErrorKind::kStore: return "store";
    case ErrorKind::kInternal: return "internal";
  }
  return "internal";
}

std::string with_errno(const std::string& message, int error_number) {
  return message + ": " + std::generic_category().message(error_number) + " (errno " + std::to_string(error_number) +
         ")";
}

}  // namespace atl
