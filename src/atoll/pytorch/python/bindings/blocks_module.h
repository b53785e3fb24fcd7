// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds pack_blocks, unpack_blocks and block_formats to the module: blocks.h for CPU tensors.
void bind_blocks(pybind11::module_& module);

}  // namespace atl::pytorch
