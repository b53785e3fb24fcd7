// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "atoll/infer/session/session.h"

namespace atl::pytorch {

/// Converts the keyword arguments of the class in Python. Throws Error(kInvalidArgument) naming the setting and its
/// value.
infer::SessionOptions session_options(const pybind11::dict& given);

}  // namespace atl::pytorch
