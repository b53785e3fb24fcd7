// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace atl::pytorch {

/// Returns the error's message without the C++ stack trace that c10's errors carry.
inline std::string plain_text(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch ? from_torch->what_without_backtrace() : error.what();
}

}  // namespace atl::pytorch
