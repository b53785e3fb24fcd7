// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "atoll/infer/engine/local_engine.h"

namespace atl::pytorch {

/// Loads a package of AOTInductor (".pt2"), as torch._inductor.aoti_compile_and_package writes it, as a session's own
/// engine on `device`. A package is native code that becomes part of this process: load only packages from a source
/// that you trust.
///
/// A package is compiled for inputs of certain types, shapes and strides and checks them only if
/// AOTI_RUNTIME_CHECK_INPUTS is 1 in the environment, so this sets that variable for the process if it is not set.
/// Throws Error(kUnavailable) for a file that does not exist, kInvalidArgument for one that does not load or was made
/// for another kind of device.
std::shared_ptr<infer::LocalEngine> load_package_engine(const std::string& path, const std::string& device);

}  // namespace atl::pytorch
