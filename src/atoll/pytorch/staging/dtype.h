// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "atoll/collectives/types.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// "float32", as torch's users write it.
std::string dtype_name(at::ScalarType type);

/// Atoll's name for torch's type, where it has one.
std::optional<collectives::DataType> data_type(at::ScalarType type) noexcept;

/// As what a tensor of `type` travels when nothing is computed: its own type where Atoll has it, else plain bytes.
collectives::DataType wire_type(at::ScalarType type) noexcept;

/// The way back from data_type().
at::ScalarType scalar_type(collectives::DataType type) noexcept;

struct Reduction {
  collectives::ReduceOp op = collectives::ReduceOp::kSum;
  double factor = 1.0;  ///< PREMUL_SUM
};

/// Throws ValueError for an operation Atoll does not know.
Reduction reduction(const c10d::ReduceOp& op);

/// The type in which `operation` reduces `tensor`. Throws TypeError naming a dtype Atoll cannot reduce, ValueError naming
/// a reduction that has no meaning for it.
collectives::DataType reduced_type(const char* operation, const at::Tensor& tensor, const Reduction& how);

}  // namespace atl::pytorch
