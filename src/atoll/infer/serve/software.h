// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::infer {

/// What both ends say they are, for people and logs.
inline constexpr const char* kSoftware = "atoll " ATOLL_VERSION;

}  // namespace atl::infer
