// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

#include "atoll/core/error.h"

namespace atl::fuzz {

/// Returns whether `action` ended without an error; it may throw only errors of this kind.
template <class Action>
bool is_read(ErrorKind kind, const Action& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    if (error.kind() != kind) std::abort();
    return false;
  }
}

}  // namespace atl::fuzz
