// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/core/error.h"

namespace atl::infer {

/// Throws Error(kProtocol) for a malformed graph, file or message.
[[noreturn]] inline void malformed(const std::string& what) { throw Error(ErrorKind::kProtocol, what); }

}  // namespace atl::infer
