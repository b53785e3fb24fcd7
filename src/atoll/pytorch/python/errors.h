// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "atoll/core/error.h"

namespace atl::pytorch {

/// Throws the exception of torch.distributed that stands for `error`, with the same text: ValueError for
/// kInvalidArgument, DistNetworkError for a lost or unauthenticated peer, DistStoreError for the store, else
/// DistBackendError.
[[noreturn]] void throw_as_torch(const Error& error);

/// Converts a stored exception in the same way; anything but atl::Error is returned unchanged.
std::exception_ptr as_torch(const std::exception_ptr& error) noexcept;

/// Returns the message of the exception.
std::string text_of(const std::exception_ptr& error);

/// Runs `body` and rethrows its atl::Error as torch's exception.
template <typename Body>
decltype(auto) translated(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace atl::pytorch
