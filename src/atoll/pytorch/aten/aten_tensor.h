// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "atoll/infer/run/runner.h"

// The values of make_operator_runner()'s runners.
namespace atl::pytorch {

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
