// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "atoll/infer/engine/local_engine.h"

namespace atl::pytorch {

/// A package of AOTInductor, as torch._inductor.aoti_compile_and_package writes it (".pt2"), as a session's own engine on
/// `device`. A package is native code that becomes part of this process: load none of which you do not know who made it.
///
/// It was compiled for inputs of certain types, shapes and strides and looks at none of them unless AOTI_RUNTIME_CHECK_INPUTS
/// is 1 in the environment, so this sets that, for the process, where nobody has set it. Error(kUnavailable) for a file that
/// is not there, kInvalidArgument for one that does not load or was made for another kind of device.
std::shared_ptr<infer::LocalEngine> load_package_engine(const std::string& path, const std::string& device);

}  // namespace atl::pytorch
