// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace atl {

/// The kind of a failure, which tells the caller what to do next. The set is closed.
enum class ErrorKind {
  kInvalidArgument,  ///< fix the call: a value is outside what the function accepts
  kMismatch,         ///< fix the program: ranks called different operations, sizes, dtypes or orders
  kTimeout,          ///< a deadline passed; the message says what was waited for
  kPeerLost,         ///< a peer process died, was stopped or became unreachable: restart or shrink
  kAborted,          ///< abort() or shutdown() ended the work on this or another rank
  kUnavailable,      ///< a resource is missing here (port, interface, descriptor, library): free or configure it
  kRefused,          ///< a stranger: wrong key, job, attempt or wire version
  kProtocol,         ///< a peer sent bytes that do not parse
  kStore,            ///< the rendezvous store failed or is gone
  kInternal,         ///< a bug in Atoll: please report it
};

/// Returns the stable lower-case name of `kind`, for logs and dumps ("peer_lost").
const char* to_string(ErrorKind kind) noexcept;

/// Returns the parts one after the other: texts as they are, numbers as std::to_string writes them.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

/// The one exception type of libatoll. Messages name the operation, the peer and the value seen.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  /// Joins the message's parts.
  template <class First, class Second, class... Rest>
  Error(ErrorKind kind, const First& first, const Second& second, const Rest&... rest)
      : Error(kind, joined(first, second, rest...)) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Returns "message: Connection refused (errno 111)", for errors that come from a system call.
std::string with_errno(const std::string& message, int error_number);

/// Makes an Error(kUnavailable) with the system's reason and, when descriptors ran out, the remedy.
Error unavailable(const std::string& what, int error_number);

}  // namespace atl
