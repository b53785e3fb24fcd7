// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/core/error.h"

namespace atl::infer {

/// Throws Error(kProtocol): a graph, a file or what another side sent is not as it must be.
[[noreturn]] inline void malformed(const std::string& what) { throw Error(ErrorKind::kProtocol, what); }

}  // namespace atl::infer
