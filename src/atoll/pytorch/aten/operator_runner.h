// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "atoll/infer/run/runner.h"

namespace atl::pytorch {

/// Calls PyTorch's operators on `device`, such as "cpu" or "cuda:0", on the current stream of the thread that uses it.
/// Views are made as reshapes, which is right for all strides. Error(kInvalidArgument) for what is not a device,
/// kUnavailable for one that is not here.
std::shared_ptr<infer::OperatorRunner> make_operator_runner(const std::string& device);

}  // namespace atl::pytorch
