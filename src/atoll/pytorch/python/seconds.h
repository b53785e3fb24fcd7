// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "atoll/core/error.h"

namespace atl::pytorch {

/// Converts seconds from Python. Throws Error(kInvalidArgument) naming them for NaN and values below 0 or above 1e9.
inline std::chrono::nanoseconds checked_seconds(const std::string& name, double seconds) {
  constexpr double kMax = 1e9;
  if (seconds >= 0 && seconds <= kMax) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  }
  throw Error(ErrorKind::kInvalidArgument, name + " is " + std::to_string(seconds) + ": give seconds from 0 to 1e9");
}

/// Converts seconds to milliseconds, rounded towards zero.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace atl::pytorch
