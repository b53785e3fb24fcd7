// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "atoll/collectives/types.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Returns the name that torch's users write, such as "float32".
std::string dtype_name(at::ScalarType type);

/// Returns Atoll's type for torch's, if it has one.
std::optional<collectives::DataType> data_type(at::ScalarType type) noexcept;

/// Returns the type in which a tensor of `type` is sent when nothing is computed: its own if Atoll has it, else plain
/// bytes.
collectives::DataType wire_type(at::ScalarType type) noexcept;

/// Returns whether every vendor's library has the type. Atoll itself reduces the others, and moves them as these.
bool is_common(at::ScalarType type) noexcept;

/// The inverse of data_type().
at::ScalarType scalar_type(collectives::DataType type) noexcept;

struct Reduction {
  collectives::ReduceOp op = collectives::ReduceOp::kSum;
  double factor = 1.0;  ///< PREMUL_SUM
};

/// Converts torch's reduce operation. Throws ValueError for one that Atoll does not know.
Reduction reduction(const c10d::ReduceOp& op);

/// Returns the type in which `operation` reduces `tensor`. Throws TypeError naming a dtype that Atoll cannot reduce,
/// and ValueError naming a reduction that is not defined for it.
collectives::DataType reduced_type(const char* operation, const at::Tensor& tensor, const Reduction& how);

}  // namespace atl::pytorch
