// SPDX-License-Identifier: Apache-2.0
#include "atoll/core/error.h"

#include <cerrno>
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

Error unavailable(const std::string& what, int error_number) {
  std::string message = with_errno(what, error_number);
  if (error_number == EMFILE) message += "; raise the limit of open files (ulimit -n)";
  if (error_number == ENFILE) message += "; raise the system's limit of open files (sysctl fs.file-max)";
  return {ErrorKind::kUnavailable, message};
}

}  // namespace atl
