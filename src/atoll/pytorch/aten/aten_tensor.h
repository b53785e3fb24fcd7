// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <utility>

#include "atoll/infer/run/runner.h"

// What values of make_operator_runner()'s runners are.
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

/// Null for a tensor that is not defined.
inline infer::Value value_of(at::Tensor tensor) {
  if (!tensor.defined()) return nullptr;
  return std::make_shared<const AtenTensor>(std::move(tensor));
}

/// Until what this thread has called on the device is done.
inline void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace atl::pytorch
