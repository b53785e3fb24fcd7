// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "atoll/infer/graph.h"

namespace atl::infer::operators {

/// An argument that may be a tensor or a Python number (a boolean, an int64 or a float64 without dimensions), which has
/// less weight in the type of a result.
struct Operand {
  Dtype dtype = Dtype::kFloat32;
  Shape shape;
  bool is_number = false;
};

/// The type that holds values of both types, as PyTorch promotes them.
Dtype promote(Dtype a, Dtype b) noexcept;

/// The type in which PyTorch computes with these operands, at least one. Tensors with dimensions come first, then
/// tensors without, then numbers; a later kind counts only if it is of a higher class (boolean, integer, floating). A
/// floating number counts as float32.
Dtype result_type(std::span<const Operand> operands) noexcept;

}  // namespace atl::infer::operators
