// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "atoll/infer/run/runner.h"

namespace atl::pytorch {

/// Makes a runner that calls PyTorch's operators on `device`, such as "cpu" or "cuda:0", on the current stream of the
/// calling thread. Views are run as reshapes, which are right for all strides. Throws Error(kInvalidArgument) for an
/// invalid device, kUnavailable for one that this machine does not have.
std::shared_ptr<infer::OperatorRunner> make_operator_runner(const std::string& device);

}  // namespace atl::pytorch
