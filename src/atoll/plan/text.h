// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/core/error.h"

namespace atl::plan {

[[noreturn]] inline void refuse(const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); }

/// "0.25", for messages.
std::string number(double value);

/// "12.3 %" for 0.123.
std::string percent(double share);

/// "1 sample", "2 samples".
std::string counted(std::int64_t count, const std::string& noun);

/// Refuses what is negative, infinite or not a number: "the cost's knee is -1: ...".
void require_amount(const std::string& name, double value);

}  // namespace atl::plan
