// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Returns whether the tensor is contiguous memory that holds its values.
bool is_plain(const at::Tensor& tensor);

/// Replaces strided tensors, and tensors whose storage is not their value (lazily conjugated or negated ones, zeros
/// without memory), by the contiguous tensors that libraries work on. A tensor that is already plain is used as it is.
/// Those of a dtype that a vendor's library may lack (is_common) are views as one of the same width that it has, or as
/// bytes, in one more dimension. All functions that take tensors throw c10::ValueError if those of one operation are on
/// different devices.
class PlainTensors {
 public:
  at::Tensor read(const at::Tensor& tensor);

  /// Returns a tensor whose content copy_back() copies to `tensor`. Its initial content is undefined unless `load`.
  at::Tensor write(const at::Tensor& tensor, bool load = true);

  std::vector<at::Tensor> read(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> write(const std::vector<at::Tensor>& tensors);

  /// The device of the tensors; the CPU if there are none.
  c10::Device device() const { return device_.value_or(c10::Device(c10::kCPU)); }

  bool needs_copy_back() const noexcept { return !copies_.empty(); }

  /// Copies the results to the tensors that they replace; on an accelerator in the order of the current stream.
  void copy_back() const;

 private:
  void note_device(const at::Tensor& tensor);

  std::optional<c10::Device> device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // the target and its replacement
};

}  // namespace atl::pytorch
