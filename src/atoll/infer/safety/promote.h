// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "atoll/infer/graph.h"

namespace atl::infer::safety {

/// What stands where an operator takes a tensor: one, or a Python number (a boolean, an int64 or a float64 without
/// dimensions), which weighs less in the type of a result.
struct Operand {
  Dtype dtype = Dtype::kFloat32;
  Shape shape;
  bool is_number = false;
};

/// The type that values of both types fit in, as PyTorch promotes them.
Dtype promote(Dtype a, Dtype b) noexcept;

/// The type in which PyTorch computes with these operands, of which there is at least one: tensors with dimensions
/// decide, then tensors without, then numbers; a later kind counts only where it is of a higher class (boolean, integer,
/// floating). A floating number counts as float32.
Dtype result_type(std::span<const Operand> operands) noexcept;

}  // namespace atl::infer::safety
