// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/staging/plain.h"

namespace atl::pytorch {

/// The memory of one operation: contiguous segments of the caller's tensors, or of temporaries on the same device for a
/// tensor that is strided or whose storage is not its value (conjugate views). Keeps all of them alive. Segments of an
/// accelerator's tensors are device addresses.
class Operands {
 public:
  /// Returns memory with the tensor's values. Throws c10::ValueError if the operation's tensors are on different
  /// devices.
  collectives::Segment read(const at::Tensor& tensor);

  /// Returns memory whose content reaches `tensor` through copy_back(). Equal to read(tensor)'s for an in-place
  /// operation on a contiguous tensor. With `load`, it initially holds the tensor's values.
  collectives::Segment write(const at::Tensor& tensor, bool load = false);

  /// The device of the tensors; the CPU if there are none.
  c10::Device device() const { return plain_.device(); }

  /// Returns the memory of a segment that read() or write() returned, or of a part of one, as a flat tensor of bytes.
  at::Tensor bytes_of(const collectives::Segment& segment) const;

  /// Copies temporaries to the tensors that they replace; on an accelerator in the order of the current stream. Call it
  /// once, on any thread, after the operation has succeeded.
  void copy_back() const { plain_.copy_back(); }
  bool needs_copy_back() const noexcept { return plain_.needs_copy_back(); }

  /// Every tensor whose memory the operation uses.
  const std::vector<at::Tensor>& tensors() const noexcept { return memories_; }

 private:
  collectives::Segment keep(const at::Tensor& memory);

  std::vector<at::Tensor> memories_;  // contiguous
  PlainTensors plain_;
};

/// Cuts `whole` into consecutive parts with these numbers of elements of `element_bytes` each.
std::vector<collectives::Segment> cut(collectives::Segment whole, const std::vector<std::int64_t>& numels,
                                      std::size_t element_bytes);

/// Cuts `whole` into equal consecutive parts.
std::vector<collectives::Segment> cut_equally(collectives::Segment whole, int parts);

}  // namespace atl::pytorch
