// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "atoll/infer/engine/local_engine.h"
#include "atoll/infer/session/session.h"

// What the arguments of the class in Python stand for.
namespace atl::pytorch {

/// Converts the keyword arguments. Throws Error(kInvalidArgument) naming the setting and its value.
infer::SessionOptions session_options(const py::dict& given);

/// Makes a session's own engine on `device` of a Python function that takes a list of tensors and returns one. The
/// function is called with the GIL, on copies of the inputs, and its results are copied. Must be called with the GIL.
std::shared_ptr<infer::LocalEngine> make_callable_engine(py::function function, const std::string& device);

}  // namespace atl::pytorch
