// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/argument_reader.h"
#include "atoll/infer/operators/promote.h"

namespace atl::infer::operators {

/// One call of an operator as admission reads it: the arguments, and the types of the tensors among them, which may be
/// those of a part. Functions throw Error(kRefused), which names the call and the argument, for anything other than
/// they request. Borrows everything.
class CallView final : public ArgumentReader {
 public:
  /// `where` names the call in errors. `types` are those of all tensors among `args`, in order (another number is
  /// Error(kInvalidArgument)). Tensors of more than kMaxElements are refused, and without `takes_empty` also tensors
  /// without elements.
  CallView(std::string where, const std::vector<Argument>& args, std::span<const Tensor> types, bool takes_empty);

  std::string name() const override { return where_; }
  std::size_t operands() const noexcept override { return types_.size(); }
  const Tensor& operand(std::size_t operand) const override { return types_[operand]; }
  /// The types of all operands.
  std::span<const Tensor> types() const noexcept { return types_; }

  /// A tensor, or a number in its place.
  Operand value(std::size_t argument) const;
  /// A number as an operand, for arguments that cannot be tensors.
  Operand scalar(std::size_t argument) const;
  /// Requires a number that fits `dtype`, as PyTorch's checked conversion does.
  void require_fits(std::size_t argument, Dtype dtype) const;
  /// Requires null or a format that a tensor of `rank` dimensions can have.
  void require_memory_format(std::size_t argument, std::size_t rank) const;
  /// Checks the four arguments dtype, layout, device and pin_memory from `argument` on; returns the dtype, or
  /// `fallback`.
  Dtype options(std::size_t argument, Dtype fallback) const;

 private:
  std::string where_;
  std::span<const Tensor> types_;
};

}  // namespace atl::infer::operators
