// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace atl::pytorch {

/// Loads PyTorch's library for a device such as "cuda:0", which Python's module would load, and what that library would
/// itself load later, when the sandbox no longer allows it. Does nothing for "cpu". Throws Error(kUnavailable) if there
/// is no such library or device.
void load_device_library(const std::string& device);

}  // namespace atl::pytorch
