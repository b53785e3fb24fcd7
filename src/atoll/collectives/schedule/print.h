// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/collectives/schedule/schedule.h"

namespace atl::collectives {

/// Returns a description of one step: "send 4096 bytes at 0 to rank 2 up from input 0 + 0".
std::string describe_step(const Schedule& schedule, const Step& step);

}  // namespace atl::collectives
