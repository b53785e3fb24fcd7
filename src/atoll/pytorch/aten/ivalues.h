// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "atoll/infer/graph.h"

// Between a graph's values and PyTorch's.
namespace atl::pytorch {

c10::ScalarType scalar_type_of(infer::Dtype dtype) noexcept;
/// Error(kInvalidArgument) for a type that graphs do not have.
infer::Dtype dtype_of(c10::ScalarType type);

/// The value of an argument of an operator, by what its schema wants there; tensors leave an empty place. A number in a
/// tensor's place becomes a tensor that takes no part in the promotion of types. Error(kProtocol), which names the
/// argument, where the value does not fit.
c10::IValue ivalue_of(const c10::Argument& argument, const infer::Argument& value, c10::Device device);

/// Whether the schema wants a list of tensors that may be absent.
bool is_list_of_optionals(const c10::Argument& argument);

}  // namespace atl::pytorch
