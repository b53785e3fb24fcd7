// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/software.h"

namespace atl::infer {

const char* software() noexcept { return "atoll " ATOLL_VERSION; }

}  // namespace atl::infer
