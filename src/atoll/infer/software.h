// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace atl::infer {

/// The name and version that each end reports, for people and logs: "atoll 0.1.0".
const char* software() noexcept;

}  // namespace atl::infer
