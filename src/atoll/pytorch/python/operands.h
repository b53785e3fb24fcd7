// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "atoll/collectives/group.h"
#include "atoll/pytorch/aten/staging.h"
#include "atoll/pytorch/python/torch.h"

namespace atl::pytorch {

/// The memory of one operation as libatoll sees it: contiguous segments of the caller's tensors, or of temporaries where a
/// tensor is strided, its storage is not its value (conjugate views), or it lies on an accelerator. Keeps all of them alive.
class Operands {
 public:
  /// Memory with the tensor's values. Throws c10::ValueError when tensors of one operation lie on different devices.
  collectives::Segment read(const at::Tensor& tensor);

  /// Memory whose content reaches `tensor` through copy_back(). Equal to read(tensor)'s for an in-place operation on a
  /// contiguous CPU tensor. With `load`, it begins with the tensor's values.
  collectives::Segment write(const at::Tensor& tensor, bool load = false);

  /// Copies temporaries to the tensors they stand for. Call it once, after success; any thread. Copies to an accelerator are
  /// issued only: staging() tells how to wait for them.
  void copy_back();
  bool needs_copy_back() const noexcept { return !copies_.empty() || (staging_ && staging_->has_results()); }

  /// Of the tensors on an accelerator; null when there are none.
  const std::shared_ptr<Staging>& staging() const noexcept { return staging_; }

 private:
  bool on_device(const at::Tensor& tensor);

  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // target, temporary
  std::shared_ptr<Staging> staging_;
};

/// Consecutive parts of `whole` with the given numbers of elements of `element_bytes` each.
std::vector<collectives::Segment> cut(collectives::Segment whole, const std::vector<std::int64_t>& numels,
                                      std::size_t element_bytes);

/// `parts` equal consecutive parts.
std::vector<collectives::Segment> cut_equally(collectives::Segment whole, int parts);

}  // namespace atl::pytorch
