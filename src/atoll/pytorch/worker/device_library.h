// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::pytorch {

/// Loads what PyTorch knows of a device such as "cuda:0", which lies in a library of its own and which Python's module
/// would load; and what that library would itself load later, when the sandbox no longer lets it. Does nothing for "cpu".
/// Throws Error(kUnavailable) where there is no such library, or no such device.
void load_device_library(const std::string& device);

}  // namespace atl::pytorch
