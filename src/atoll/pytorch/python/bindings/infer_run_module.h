// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace atl::pytorch {

/// Adds what runs graphs in this process to the module: InferModel, plan_division, and the memory of their activations:
/// infer_arena_bytes, infer_empty_arena.
void bind_infer_run(pybind11::module_& module);

}  // namespace atl::pytorch
