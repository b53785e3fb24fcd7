// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "atoll/sim/library/call.h"

namespace atl::sim {

/// One call of the library with its tensors. Each function checks its arguments and throws ValueError that begins with
/// the operation's name; of a dtype that NCCL lacks, the error that PyTorch throws for NCCL.
class Operands {
 public:
  Operands(Operation operation, const char* name) : name_(name) { call_.operation = operation; }

  /// Add tensors, all of which must be contiguous, on one simulated device and of one dtype.
  void read(const at::Tensor& tensor) { call_.input.push_back(take(tensor)); }
  void write(const at::Tensor& tensor) { call_.output.push_back(take(tensor)); }
  void read(const std::vector<at::Tensor>& tensors);
  void write(const std::vector<at::Tensor>& tensors);

  /// Add consecutive parts of a tensor: of `splits` rows each, or `size` equal ones if that is empty.
  void read_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size);
  void write_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size);

  void set_root(const char* what, std::int64_t root, int size);
  void set_reduction(const c10d::ReduceOp& op);

  /// Requires that input and output do not overlap.
  void check_apart() const;

  /// Requires that `found`, which `what` names, is as large as `expected`.
  void check_size(const char* what, const Region& expected, const Region& found) const;

  /// Sets the device of a call without tensors (barrier).
  void set_device(c10::DeviceIndex index) { index_ = index; }

  const Call& call() const noexcept { return call_; }
  c10::DeviceIndex index() const noexcept { return index_; }
  const std::vector<at::Tensor>& tensors() const noexcept { return tensors_; }
  const char* name() const noexcept { return name_; }

  /// The bytes read or the bytes written, whichever is larger.
  std::uint64_t bytes() const noexcept;

 private:
  Region take(const at::Tensor& tensor);
  std::vector<Region> cut(const char* what, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                          int size);

  const char* name_;
  Call call_;
  c10::DeviceIndex index_ = -1;
  at::ScalarType type_ = at::ScalarType::Undefined;
  std::vector<at::Tensor> tensors_;
};

/// Returns the only tensor, or list of tensors, of `list`, which `what` names. Throws ValueError.
const at::Tensor& only(const char* name, const char* what, const std::vector<at::Tensor>& list);
const std::vector<at::Tensor>& one_per_rank(const char* name, const char* what,
                                            const std::vector<std::vector<at::Tensor>>& lists, int size);
void check_one_per_rank(const char* name, const char* what, const std::vector<at::Tensor>& list, int size);

/// Requires that all tensors of `list` have the shape of `own`.
void check_one_shape(const char* name, const at::Tensor& own, const std::vector<at::Tensor>& list);

bool overlap(const Region& a, const Region& b) noexcept;

}  // namespace atl::sim
