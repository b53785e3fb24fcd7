// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <utility>

#include "atoll/infer/graph.h"
#include "atoll/infer/run/runner.h"

// Conversions between a graph's values and PyTorch's.
namespace atl::pytorch {

c10::ScalarType scalar_type_of(infer::Dtype dtype) noexcept;
/// Throws Error(kInvalidArgument) for a type that graphs do not have.
infer::Dtype dtype_of(c10::ScalarType type);

/// Converts the value of an operator's argument to the type that its schema wants; the result for a tensor is empty. A
/// number in place of a tensor becomes a tensor that takes no part in type promotion. Throws Error(kProtocol) naming
/// the argument if the value does not fit.
c10::IValue ivalue_of(const c10::Argument& argument, const infer::Argument& value, c10::Device device);

/// Returns whether the schema wants a list of optional tensors.
bool is_list_of_optionals(const c10::Argument& argument);

/// The values of make_operator_runner()'s runners.
class AtenTensor final : public infer::DeviceTensor {
 public:
  explicit AtenTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  const at::Tensor& tensor() const noexcept { return tensor_; }

 private:
  at::Tensor tensor_;
};

inline const at::Tensor& tensor_of(const infer::Value& value) {
  return static_cast<const AtenTensor&>(*value).tensor();
}

/// Wraps a tensor; returns null for one that is not defined.
inline infer::Value value_of(at::Tensor tensor) {
  if (!tensor.defined()) return nullptr;
  return std::make_shared<const AtenTensor>(std::move(tensor));
}

}  // namespace atl::pytorch
