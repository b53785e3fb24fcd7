// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "atoll/infer/engine/local_engine.h"

namespace atl::pytorch {

/// A function of Python that takes a list of tensors and returns one, as a session's own engine on `device`. It is called with
/// the GIL, on copies of the inputs, and what it returns is copied. Needs the GIL.
std::shared_ptr<infer::LocalEngine> make_callable_engine(py::function function, const std::string& device);

}  // namespace atl::pytorch
