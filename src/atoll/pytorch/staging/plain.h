// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// Whether the tensor is contiguous memory that holds its values.
bool is_plain(const at::Tensor& tensor);

/// Contiguous tensors in the place of strided ones, and of tensors whose storage is not their value (lazily conjugated or
/// negated ones, zeros without memory): what libraries work on. A tensor that is plain already stands for itself. All
/// functions that take tensors throw c10::ValueError when those of one operation lie on different devices.
class PlainTensors {
 public:
  at::Tensor read(const at::Tensor& tensor);

  /// What is written to the result reaches `tensor` with copy_back(). Unless `load`, its content may be anything.
  at::Tensor write(const at::Tensor& tensor, bool load = true);

  std::vector<at::Tensor> read(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> write(const std::vector<at::Tensor>& tensors);

  /// Where the tensors are; the CPU when there are none.
  c10::Device device() const { return device_.value_or(c10::Device(c10::kCPU)); }

  bool needs_copy_back() const noexcept { return !copies_.empty(); }

  /// On an accelerator in the order of the current stream.
  void copy_back() const;

 private:
  void note_device(const at::Tensor& tensor);

  std::optional<c10::Device> device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // target, what stands for it
};

}  // namespace atl::pytorch
